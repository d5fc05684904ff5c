"""Write `optim/__init__.pyi`: what type checkers and editors know of the public names of `optim`.

Signatures of optimizers are made from their rules when Python runs, which no type checker sees. Run
`python tools/stubs.py` after a rule, an option or a public name changes; a test fails if you forgot it. The stub
replaces `optim/__init__.py` alone, so that mypy still checks all other files of `optim` themselves.
"""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
STUB = ROOT / "optim" / "__init__.pyi"
HEAD = '"""Made by `python tools/stubs.py`; change the rules, the options or `optim/__init__.py` instead."""'
OWN_TYPES = {
    "Any": "typing",
    "Mapping": "collections.abc",
    "Sequence": "collections.abc",
    "Number": "optim.arguments",
    "LearningRate": "optim.arguments",
}
"""Where names of types are from that annotations of arguments have here."""


def text() -> str:
    """The whole stub."""
    import optim
    from optim.optimizers.of_rule import RuleOptimizer

    homes = optim._HOME
    classes_ = {n: getattr(optim, n) for n in sorted(homes) if homes[n].startswith("optim.optimizers.")}
    classes_ = {name: class_ for name, class_ in classes_.items() if class_ is not RuleOptimizer}
    classes = [_class(name, class_) for name, class_ in classes_.items()]
    names = {node.id for code in classes for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    known = {**_imported("optim/options/settings.py"), **_imported("optim/optimizer.py"), **OWN_TYPES}
    lines = [f"from {known[name]} import {name}" for name in names if name in known and name not in homes]
    lines += [f"from {homes[name]} import {name} as {'_' * (name in classes_)}{name}" for name in homes]
    lines += [f"from optim import {name} as {name}" for name in optim.FOLDERS]
    return _formatted("\n".join([HEAD, *sorted(lines), f"__all__ = {optim.__all__}", *classes]))


def _class(name: str, class_: type) -> str:
    """A class that takes the arguments of an optimizer by their names, with what else the optimizer has."""
    parameters, is_keyword = ["        self,"], False
    for parameter in inspect.signature(class_).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not is_keyword:
            is_keyword = True
            parameters.append("        *,")
        default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
        parameters.append(f"        {parameter.name}: {_type(parameter.name, class_)}{default},")
    return "\n".join([f"class {name}(_{name}):", "    def __init__(", *parameters, "    ) -> None: ..."])


def _type(name: str, class_: Any) -> str:
    """The annotation of an argument: as its rule declares it, then as `Optimizer` or its options do."""
    from optim.arguments import Choice
    from optim.optimizer import Optimizer
    from optim.options import settings
    from optim.rule import arguments

    rule_arguments = arguments(class_._rule_class) if hasattr(class_, "_rule_class") else {}
    if isinstance(rule_arguments.get(name), Choice):
        annotations = (vars(base).get("__annotations__", {}).get(name) for base in class_._rule_class.__mro__)
        return ast.unparse(_Sequences().visit(ast.parse(next(filter(None, annotations)), mode="eval")))
    if name in rule_arguments:
        return "LearningRate" if name == "learning_rate" else "Number"
    declared: Mapping[str, Any] = {
        **settings.Options.__annotations__,
        **Optimizer.__init__.__annotations__,
        **class_.__init__.__annotations__,
    }
    return str(getattr(declared[name], "__forward_arg__", declared[name]))


class _Sequences(ast.NodeTransformer):
    """Of a tuple of any length that a rule has, the caller may give any sequence."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        inner = node.slice
        if ast.unparse(node.value) == "tuple" and isinstance(inner, ast.Tuple) and ast.unparse(inner.elts[-1]) == "...":
            return ast.Subscript(ast.Name("Sequence"), inner.elts[0])
        return node


def _imported(path: str) -> dict[str, str]:
    """The module of each name that a file of this project imports from one."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.asname or alias.name: str(node.module) for node in nodes for alias in node.names}


def _formatted(code: str) -> str:
    """As `make format` would leave it."""
    for words in (["check", "--select", "I,RUF022", "--fix", "--quiet"], ["format"]):
        ruff = [sys.executable, "-m", "ruff", *words, "--stdin-filename", STUB, "-"]
        code = subprocess.run(ruff, input=code, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return code


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    STUB.write_text(text(), encoding="utf-8")
