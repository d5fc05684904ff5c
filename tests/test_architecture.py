"""Imports run one way, and TensorFlow is loaded only by what needs it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from migrate import generations
from migrate.generations import GENERATIONS
from tests.helpers.timing import HANGS
from tests.places import FIXTURES, ROOT, TESTS

# package: what of this project it may import.
ALLOWED = {
    "optim": {"optim"},
    "migrate": {"migrate", "optim"},
    "bench": {"bench", "optim"},
    "dtopt_cli": {"dtopt_cli", "migrate", "bench", "optim"},
}
OURS = {*ALLOWED, "tests"}
HEAVY = {"tensorflow", "keras", "tf_keras", "torch", "jax", "optax"}
ROOMS = {
    "optim": (
        "errors", "interrupts", "lazy", "release", "slot_layout", "bytes", "bits", "precision", "float32_view",
        "arrays", "summed_gradients", "namespace", "arguments", "hyperparameters",
        "layouts", "devices", "rule", "rules", "algorithm", "schedules", "native", "state", "options",
        "keras_differences", "keras_configs", "configs", "recipe", "executors", "step", "groups", "optimizer",
        "checkpoints", "optimizers", "legacy", "keras",
    ),
    "migrate": (
        "errors", "generations", "releases", "facts", "surfaces", "claims", "bytes", "state", "algorithms", "rules",
        "lists", "matching", "graphs", "readers", "models", "writers", "evidence", "conversion", "live",
        "proof", "batches", "code",
    ),
}  # fmt: skip
"""The rooms of a package, each of which knows only itself and those before it."""
FILES = sorted(path for package in ALLOWED for path in (ROOT / package).rglob("*.py"))


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _imports(tree: ast.AST, *, when_loaded: bool) -> Iterator[str]:
    """Top-level packages that a file imports; with `when_loaded`, only those that importing the file loads."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide what is imported"
            yield (node.module or "").split(".")[0]
        elif when_loaded and (
            isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) or (isinstance(node, ast.If) and _is_typing(node))
        ):
            continue
        else:
            yield from _imports(node, when_loaded=when_loaded)


def _is_typing(node: ast.If) -> bool:
    return isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def test_the_packages_are_there() -> None:
    for package in ALLOWED:
        assert (ROOT / package / "__init__.py").is_file()


def _forbidden(allowed: Mapping[str, set[str]], among: set[str], *, when_loaded: bool) -> list[str]:
    """`file imports package` for each import of a file that is not allowed to its own package."""
    imports = []
    for path in FILES:
        name = path.relative_to(ROOT)
        imported = {*_imports(_tree(path), when_loaded=when_loaded)} & among
        imports += [f"{name} imports {other}" for other in sorted(imported - allowed[name.parts[0]])]
    return imports


def test_imports_run_one_way() -> None:
    assert not _forbidden(ALLOWED, OURS, when_loaded=False)


def _module(path: Path) -> str:
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
    return name.removesuffix(".__init__")


def _imported_modules(path: Path, modules: set[str]) -> set[str]:
    """Modules of this project that a file names in any import, those for types and inside functions included."""
    names = set()
    for node in ast.walk(_tree(path)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                names.add(inner if inner in modules else str(node.module))
    return names & modules - {_module(path)}


@pytest.mark.parametrize("package", ROOMS)
def test_a_room_knows_only_what_lies_below_it(package: str) -> None:
    """The package's own file, which lists its public names, knows all; it may be asked for one of them."""
    modules = {_module(path): path for path in FILES if path.is_relative_to(ROOT / package)}
    rooms = {name.split(".")[1] for name in modules if name != package}
    assert rooms == set(ROOMS[package]), "every room has its place in ROOMS"
    above = []
    for name, path in modules.items():
        if name == package:
            continue
        for other in _imported_modules(path, set(modules)) - {package}:
            here, there = (ROOMS[package].index(m.split(".")[1]) for m in (name, other))
            if there > here:
                above.append(f"{name} imports {other}")
    assert not above


@pytest.mark.parametrize("package", ALLOWED)
def test_no_files_import_one_another_in_a_circle(package: str) -> None:
    """Imports of types count: who names a class to reach into it knows it."""
    modules = {_module(path): path for path in FILES if path.is_relative_to(ROOT / package)}
    graph = {name: _imported_modules(path, set(modules)) for name, path in modules.items() if name != package}
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_frameworks_are_imported_where_they_are_used() -> None:
    """`optim` is TensorFlow's; elsewhere a framework is imported inside the function that needs it."""
    allowed = {package: {"tensorflow"} if package == "optim" else set[str]() for package in ALLOWED}
    assert not _forbidden(allowed, HEAVY, when_loaded=True)


def test_a_forbidden_import_is_found() -> None:
    tree = ast.parse("import keras\nif TYPE_CHECKING:\n    import jax\ndef f():\n    from torch import optim")
    assert [*_imports(tree, when_loaded=True)] == ["keras"]
    assert [*_imports(tree, when_loaded=False)] == ["keras", "jax", "torch"]


@pytest.mark.parametrize(
    "modules",
    [
        "optim, optim.errors, optim.slot_layout, optim.rule, optim.rules.adam, optim.rules.sgd, optim.rules.adadelta",
        "optim.schedules, optim.layouts.sharding, bench.forecast.query, bench.forecast.report",
        "migrate",
        "dtopt_cli.app",
    ],
)
def test_what_must_not_load_tensorflow(modules: str) -> None:
    code = f"import sys, {modules}; print(sorted({HEAVY!r} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": os.fspath(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, timeout=HANGS
    )
    assert done.stdout.strip() == "[]"


def test_the_optimizer_is_a_face() -> None:
    """It makes its parts and passes on to them; what it does is theirs."""
    text = (ROOT / "optim" / "optimizer.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 250
    (face,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    assert [ast.unparse(base) for base in face.bases] == ["tf.Module"], "parts are held, not inherited"
    methods = [node for node in face.body if isinstance(node, ast.FunctionDef)]
    assert all(len(method.body) <= 14 for method in methods)


def test_parts_do_not_know_the_optimizer() -> None:
    for folder in ("options", "state", "step", "executors", "layouts"):
        for path in (ROOT / "optim" / folder).glob("*.py"):
            text = path.read_text(encoding="utf-8")
            assert "optim.optimizer " not in text, f"{path} knows Optimizer"


@pytest.mark.parametrize("package", ROOMS)
def test_the_page_of_the_house_has_every_room(package: str) -> None:
    """In the order in which they may know one another."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = page.partition(f"### `{package}`\n")[2].partition("\n### ")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert tuple(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == ROOMS[package]


NAMING = {
    "migrate/generations.py",
    "migrate/proof/parity_source.py",
    "migrate/releases/modules.py",
    "migrate/releases/recognition.py",
    "migrate/releases/table.py",
}
"""Files that may name a generation; others ask for its `traits`. A file may leave this list, and none may join it."""


def _names_generation(tree: ast.AST) -> bool:
    """Whether a file has a generation's name as a text or imports its constant. "optimizer" is also a key of HDF5."""
    texts = {*GENERATIONS} - {"optimizer"}
    constants = {name for name, value in vars(generations).items() if value in GENERATIONS}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in texts:
            return True
        is_import = isinstance(node, ast.ImportFrom) and node.module == "migrate.generations"
        if is_import and constants & {alias.name for alias in node.names}:
            return True
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "generations" and node.attr in constants:
            return True
    return False


def test_few_files_name_a_generation() -> None:
    files = (path for path in FILES if path.is_relative_to(ROOT / "migrate"))
    naming_files = {str(path.relative_to(ROOT)) for path in files if _names_generation(_tree(path))}
    assert naming_files == NAMING


def test_every_trait_differs_between_generations() -> None:
    for name, text in generations.described().items():
        assert text
        assert len({getattr(generations.traits(generation), name) for generation in GENERATIONS}) > 1, (
            f"{name} is no trait"
        )


REFERENCE = re.compile(rf"`((?:{'|'.join(ALLOWED)})(?:\.\w+)+)`")


def _exists(name: str) -> bool:
    """Whether a dotted name is a module of this project, or the text of one has it."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        home = ROOT.joinpath(*parts[:count])
        file = home.with_suffix(".py") if home.with_suffix(".py").is_file() else home / "__init__.py"
        if file.is_file():
            rest = parts[count : count + 1]
            return not rest or re.search(rf"\b{rest[0]}\b", file.read_text(encoding="utf-8")) is not None
    return False


def test_modules_that_texts_name_exist() -> None:
    references = ((path, name) for path in FILES for name in REFERENCE.findall(path.read_text(encoding="utf-8")))
    assert not [f"{path.relative_to(ROOT)}: {name}" for path, name in references if not _exists(name)]


WITHOUT_TESTS = {"whole", "data", "fakes"}
"""Folders of tests of a package that mirror none of it: what tests all of it, and what its tests read."""


def test_tests_mirror_the_folders_that_they_test() -> None:
    """`tests/test_migrate/readers` tests `migrate/readers`."""
    for package in ("optim", "migrate", "bench"):
        folders = {path.name for path in (TESTS / f"test_{package}").iterdir() if path.is_dir()} - {"__pycache__"}
        assert not {name for name in folders - WITHOUT_TESTS if not (ROOT / package / name).is_dir()}


def test_places_alone_knows_where_files_of_tests_are() -> None:
    built = re.compile(r"Path\(__file__\)(?:\.resolve\(\))?\.parent(?:s\[|\.parent)|/ \"fixtures\"")
    paths = (path for path in TESTS.rglob("*.py") if FIXTURES not in path.parents and path != TESTS / "places.py")
    assert not [path for path in paths if built.search(path.read_text(encoding="utf-8"))]
