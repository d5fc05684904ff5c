"""The documentation's site: built strictly, whole without a network, and its reference complete."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

import migrate
import optim
from optim import errors
from optim.legacy import v1, v2
from optim.schedules import phases
from tests.places import ROOT
from tools import site_hooks


def _public(module: ModuleType) -> list[str]:
    listed = getattr(module, "__all__", None)
    members = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    return [name for name in listed or members if not name.startswith("_") and name != "Keywords"]


NAMES = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (optim, errors, v1, v2, migrate)
    for name in _public(module)
}
NAMES |= {f"optim.schedules.{name}": getattr(phases, name) for name in _public(phases)}


def _undescribed(value: Any) -> Iterator[str]:
    """Arguments that neither its docstring names nor that of a class which it extends."""
    if isinstance(value, type) and (issubclass(value, BaseException) or value.__init__ is object.__init__):
        return
    text = "\n".join(inspect.getdoc(c) or "" for c in (value.__mro__ if isinstance(value, type) else [value]))
    for name in inspect.signature(value).parameters:
        if name not in ("args", "kwargs") and not name.startswith("_") and not re.search(rf"\b{name}\b", text):
            yield name


def _lacks(name: str, value: Any) -> Iterator[str]:
    docstring = value.__dict__.get("__doc__") if isinstance(value, type) else value.__doc__
    if not docstring:
        yield f"{name} has no docstring"
    yield from (f"{name} does not describe {argument}" for argument in _undescribed(value))
    for member, thing in vars(value).items() if isinstance(value, type) else ():
        code = thing.fget if isinstance(thing, property) else getattr(thing, "__func__", thing)
        if not member.startswith("_") and inspect.isroutine(code) and not inspect.getdoc(thing):
            yield f"{name}.{member} has no docstring"


def test_public_names_are_described() -> None:
    assert not [lack for name, value in NAMES.items() for lack in _lacks(name, value)]


def test_an_argument_without_description_is_found() -> None:
    def plain(rate: float, steps: int) -> None:
        """Use the rate."""

    assert [*_lacks("plain", plain)] == ["plain does not describe steps"]


ALGORITHMS = [name for name in NAMES if getattr(NAMES[name], "_rule_class", None) is not None]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_names_slots_source_and_errors(name: str) -> None:
    text = inspect.getdoc(NAMES[name]) or ""
    assert re.search(r"\b[Ss]lots?\b", text)
    assert re.search(r"shaped like|shape", text) or "no slots" in text
    assert re.search(r"optim/rules/\w+\.py", text)
    assert "Raises:" in text


def test_every_public_name_is_in_the_reference() -> None:
    """Algorithms are put in when the site is built."""
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    written = re.findall(r"^::: ([\w.]+)$", pages, re.MULTILINE)
    assert "<!-- algorithms -->" in pages
    assert sorted(written + ALGORITHMS) == sorted([*NAMES, "bench.peers.own"])


@pytest.mark.parametrize("name", site_hooks.algorithms())
def test_the_example_of_an_optimizer_runs(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(site_hooks.example(name), {})
    assert capsys.readouterr().out.endswith(" 3\n")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Any]:
    """Every page of the site, parsed, by its file."""
    import html5lib

    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr[-3000:]
    return {
        path: html5lib.parse(path.read_text(encoding="utf-8"), namespaceHTMLElements=False)
        for path in folder.rglob("*.html")
    }


@pytest.mark.breadth
def test_links_of_the_site_lead_somewhere(site: dict[Path, Any]) -> None:
    marks = {path: {e.get("id") for e in page.iter() if e.get("id")} for path, page in site.items()}
    wrong = []
    for path, page in site.items():
        if path.name == "404.html":  # its links are seen from wherever it is shown
            continue
        for element in (e for e in page.iter() if e.tag in ("a", "img")):
            target = urlsplit(element.get("href") or element.get("src") or "")
            if target.scheme:
                continue
            file = (path.parent / unquote(target.path)).resolve() if target.path else path
            if not file.exists() or (target.fragment and unquote(target.fragment) not in marks.get(file, ())):
                wrong.append(f"{path.name}: {target.geturl()}")
    assert not wrong


@pytest.mark.breadth
def test_the_site_asks_for_nothing_from_elsewhere(site: dict[Path, Any]) -> None:
    asked = {
        address
        for page in site.values()
        for element in page.iter()
        if element.tag in ("script", "link", "img", "iframe", "source")
        for address in (element.get("src") or "", (element.get("rel") != "canonical" and element.get("href")) or "")
        if urlsplit(address).netloc
    }
    assert not asked


@pytest.mark.breadth
def test_the_reference_shows_each_signature_and_command(site: dict[Path, Any]) -> None:
    text = {
        f"{path.parent.name}/{path.name}": " ".join("".join(page.itertext()).split()) for path, page in site.items()
    }
    assert "Adam( learning_rate=0.001, beta_1=0.9, beta_2=0.999" in text["optim/Adam.html"]
    marks = {e.get("id") for page in site.values() for e in page.iter()}
    assert marks >= set(NAMES)
    assert "dtopt migrate checkpoint [OPTIONS]" in text["reference/commands.html"]
    assert any("dtopt migrates optimizer state" in page for name, page in text.items() if name.endswith("/index.html"))
