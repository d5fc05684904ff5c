"""Options that several commands share, and the JSON files they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

HINTS = "Hints, for sources that do not say everything"

From = Annotated[
    str,
    typer.Option("--from", metavar="FORMAT", help="Format of SOURCE; auto recognises it.", rich_help_panel=HINTS),
]
OptimizerConfig = Annotated[
    Path | None,
    typer.Option(
        "--optimizer-config",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help='JSON {"class_name": ..., "config": {...}} of the optimizer, as Keras writes it.',
        rich_help_panel=HINTS,
    ),
]
Variables = Annotated[
    Path | None,
    typer.Option(
        "--variables",
        metavar="FILE",
        exists=True,
        dir_okay=False,
        help='JSON list of {"name": ..., "shape": [...]} in the order in which the optimizer had them.',
        rich_help_panel=HINTS,
    ),
]
Generation = Annotated[
    str | None,
    typer.Option(
        "--generation",
        metavar="NAME",
        help="What wrote it: keras1, keras2, keras2.3, optimizer_v1, optimizer_v2, experimental, optimizer,"
        " keras3 or tf1.",
        rich_help_panel=HINTS,
    ),
]
OptimizerPath = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        metavar="PATH",
        help="Which optimizer, where SOURCE holds several (a GAN's): generator_optimizer, ...; the error lists them.",
        rich_help_panel=HINTS,
    ),
]
Order = Annotated[
    str | None,
    typer.Option(
        "--order",
        metavar="NAME",
        help="For a list: the generation that shall read the list; the one that wrote SOURCE if left out.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


def hints(
    format: str,
    optimizer_config: Path | None,
    variables: Path | None,
    generation: str | None,
    optimizer_path: str | None = None,
) -> dict[str, Any]:
    """The hints as keyword arguments of `migrate`'s functions. A file that is no JSON is a usage error."""
    config = _json(optimizer_config, "--optimizer-config", dict)
    names = _json(variables, "--variables", list)
    return {
        "format": format,
        "optimizer_config": config,
        "variables": names,
        "generation": generation,
        "optimizer_path": optimizer_path,
    }


def _json(path: Path | None, option: str, kind: type) -> Any:
    if path is None:
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{path} is not JSON: {error}", param_hint=option) from error
    if not isinstance(value, kind):
        wanted = "an object" if kind is dict else "a list"
        raise typer.BadParameter(f"{path} holds no JSON {wanted.split()[1]}; it must be {wanted}", param_hint=option)
    return value
