"""What mkdocs.yml cannot express: signatures as Python shows them, a page for each optimizer, commands, README."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parent.parent
COMMANDS = "<!-- commands -->"
ALGORITHMS = "<!-- algorithms -->"
FIRST_PAGE = "<!-- README.md -->"
ROOT_PAGES = {"CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Pages of the root, and where they are on the site."""
KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: griffe.ParameterKind.positional_only,
    inspect.Parameter.POSITIONAL_OR_KEYWORD: griffe.ParameterKind.positional_or_keyword,
    inspect.Parameter.VAR_POSITIONAL: griffe.ParameterKind.var_positional,
    inspect.Parameter.KEYWORD_ONLY: griffe.ParameterKind.keyword_only,
    inspect.Parameter.VAR_KEYWORD: griffe.ParameterKind.var_keyword,
}


def on_config(config: Any) -> Any:
    """Adds the optimizers' pages to the navigation; without an address of the repository there are no edit links."""
    if not config.repo_url:
        config.edit_uri = ""
    sections = {name: entries for section in config.nav for name, entries in section.items()}
    for entry in sections["Reference"]:
        if entry == {"optim": "reference/optim.md"}:
            entry["optim"] = ["reference/optim.md", *({name: page_of(name)} for name in algorithms())]
    return config


def on_files(files: Any, config: Any) -> Any:
    """Adds a page for each optimizer, and those of the root."""
    for name in algorithms():
        files.append(File.generated(config, page_of(name), content=page(name)))
    for name, place in ROOT_PAGES.items():
        files.append(File.generated(config, place, content=root_page(name)))
    return files


def root_page(name: str) -> str:
    """A page of the repository's root, with links as they are seen from docs/."""
    text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
    for other, place in ROOT_PAGES.items():
        text = text.replace(f"]({other})", f"]({place})")
    return text


def page_of(name: str) -> str:
    return f"reference/optim/{name}.md"


def page(name: str) -> str:
    """Markdown of the reference of an optimizer, with an example that tests run."""
    return (
        f"# {name}\n\n```python\n{example(name)}```\n\nIt takes the options of"
        f" [`Optimizer`](../optim.md#optim.Optimizer), too, and has its methods.\n\n"
        f"::: optim.{name}\n    options: {{members: false}}\n"
    )


def example(name: str) -> str:
    """A program that takes three steps."""
    return (
        "import tensorflow as tf\nimport optim\n\n"
        'kernel = tf.Variable([[1.0, -2.0], [3.0, 0.5]], name="kernel")\n'
        f"optimizer = optim.{name}(learning_rate=0.01)\n"
        "for _ in range(3):\n    optimizer.minimize(lambda: tf.reduce_sum(kernel**2), [kernel])\n"
        "print(kernel.numpy(), int(optimizer.iterations))\n"
    )


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Puts in what a page asks for: commands' arguments and options, all algorithms, or README, seen from docs/."""
    if COMMANDS in markdown:
        return markdown.replace(COMMANDS, commands())
    if ALGORITHMS in markdown:
        return markdown.replace(ALGORITHMS, "\n".join(map(_link, algorithms())))
    if FIRST_PAGE in markdown:
        return markdown.replace(FIRST_PAGE, root_page("README.md"))
    return markdown


def algorithms() -> list[str]:
    """Every optimizer of `optim` that is made from a rule."""
    import optim

    return [name for name in optim.__all__ if getattr(getattr(optim, name), "_rule_class", None) is not None]


def _link(name: str) -> str:
    import optim

    first = (inspect.getdoc(getattr(optim, name)) or "").split("\n\n")[0].replace("\n", " ")
    return f"- [{name}](optim/{name}.md): {first}"


def commands() -> str:
    """Markdown of `dtopt` and of each command under it."""
    import typer
    from typer.cli import get_docs_for_click

    from dtopt_cli.app import app

    command = typer.main.get_command(app)
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="dtopt")
    return text.removeprefix("# `dtopt`\n")  # the page has a title


class Signatures(griffe.Extension):
    """Gives each class the signature that `inspect` finds: an optimizer's is made from its rule."""

    def on_class_instance(self, *, node: Any, cls: griffe.Class, **_: Any) -> None:
        signature = getattr(getattr(node, "obj", None), "__signature__", None)
        if signature is None or issubclass(node.obj, BaseException):
            return
        first = griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)
        rest = [
            griffe.Parameter(p.name, kind=KINDS[p.kind], default=None if p.default is p.empty else repr(p.default))
            for p in signature.parameters.values()
        ]
        cls.set_member("__init__", griffe.Function("__init__", parameters=griffe.Parameters(first, *rest)))
