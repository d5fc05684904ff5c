"""Options that several commands share, and the JSON files they name."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

FORMATS = (
    "auto",
    "h5",
    "keras",
    "weights_h5",
    "list",
    "slots",
    "saved_model",
    "tf_object",
    "tf_dtensor_names",
    "tf1_saver",
)
TARGETS = ("slots", "keras", "tf-keras", "list")
HINTS = "Hints, for sources that do not contain everything"
FORMS: dict[type, str] = {
    dict: 'an object, {"class_name": ..., "config": {...}}',
    list: 'a list of objects, [{"name": ..., "shape": [...]}, ...], or of patterns of names',
}
"""What the JSON of hints looks like."""

From = Annotated[
    str,
    typer.Option(
        "--from",
        metavar="FORMAT",
        help=f"Format of SOURCE: {', '.join(FORMATS)}.",
        rich_help_panel=HINTS,
    ),
]
OptimizerConfig = Annotated[
    str | None,
    typer.Option(
        "--optimizer-config",
        metavar="FILE",
        help='The optimizer as Keras writes it, JSON {"class_name": ..., "config": {...}}: a file, or the JSON itself.'
        " Adds what SOURCE does not contain.",
        rich_help_panel=HINTS,
    ),
]
OptimizerFrom = Annotated[
    str | None,
    typer.Option(
        "--optimizer-from",
        metavar="SCRIPT[:NAME|:LINE]",
        help="The training program. dtopt reads its optimizer, bound to NAME or at LINE, and does not run it.",
        rich_help_panel=HINTS,
    ),
]
Variables = Annotated[
    str | None,
    typer.Option(
        "--variables",
        metavar="FILE",
        help='JSON list of {"name": ..., "shape": [...]} in the optimizer\'s order, or of patterns to search for in the'
        " names of SOURCE.",
        rich_help_panel=HINTS,
    ),
]
Generation = Annotated[
    str | None,
    typer.Option(
        "--generation",
        metavar="NAME",
        help="What wrote SOURCE: keras1, keras2, keras2.3, optimizer_v1, optimizer_v2, experimental, optimizer,"
        " keras3 or tf1.",
        rich_help_panel=HINTS,
    ),
]
OptimizerPath = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        metavar="PATH",
        help="Which optimizer, if SOURCE has several, such as a GAN's. The error lists them.",
        rich_help_panel=HINTS,
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Use this value instead of the one in SOURCE, or confirm one that was assumed: learning_rate=0.001,"
        " iterations=500, clipnorm=none, class_name=Adam. Can be repeated.",
        rich_help_panel=HINTS,
    ),
]
PARTIAL = "A part of SOURCE, for another model or optimizer"
Fresh = Annotated[
    list[str] | None,
    typer.Option(
        "--fresh",
        metavar="PATTERN",
        help="Variables that start fresh, such as a new last layer: a regular expression to search for in their names."
        " With it, --variables may describe the new model. Can be repeated.",
        rich_help_panel=PARTIAL,
    ),
]
Grown = Annotated[
    list[str] | None,
    typer.Option(
        "--grown",
        metavar="PATTERN",
        help="Variables that are larger in the new model along one dim, such as a longer vocabulary. SOURCE fills their"
        " first part. Can be repeated.",
        rich_help_panel=PARTIAL,
    ),
]
WeightsOnly = Annotated[
    bool,
    typer.Option(
        "--weights-only",
        help="Reset the optimizer and take the model's variables only. --set class_name=CLASS or --optimizer-config"
        " names another optimizer.",
        rich_help_panel=PARTIAL,
    ),
]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse everything that is not exact.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Do everything except writing.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show where every value came from.")]
Order = Annotated[
    str | None,
    typer.Option(
        "--order",
        metavar="NAME",
        help="For list output: the generation that will read it (default: the one that wrote SOURCE).",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]


@dataclass(frozen=True)
class Hints:
    """The user's hints for an incomplete source."""

    format: From = "auto"
    optimizer_config: OptimizerConfig = None
    variables: Variables = None
    generation: Generation = None
    optimizer_path: OptimizerPath = None
    overrides: Set = None
    optimizer_from: OptimizerFrom = None

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `migrate`'s functions. A file that is no JSON is a usage error."""
        values = {
            "format": self.format,
            "optimizer_config": _json(self.optimizer_config, "--optimizer-config", dict),
            "variables": _json(self.variables, "--variables", list),
            "generation": self.generation,
            "optimizer_path": self.optimizer_path,
            "overrides": _settings(self.overrides or ()),
        }
        if self.optimizer_from is None:
            return values
        from dtopt_cli import programs

        return values | programs.hints(self.optimizer_from, self.optimizer_config, self.generation)

    def words(self) -> list[str]:
        """As they were typed, for a command that is to be given them, too."""
        pairs = (
            ("--from", None if self.format == "auto" else self.format),
            ("--optimizer-config", self.optimizer_config),
            ("--optimizer-from", self.optimizer_from),
            ("--variables", self.variables),
            ("--generation", self.generation),
            ("--optimizer", self.optimizer_path),
            *(("--set", override) for override in self.overrides or ()),
        )
        return [word for option, value in pairs if value is not None for word in (option, value)]


@dataclass(frozen=True)
class Partial:
    """Which part of a source the user wants."""

    fresh: Fresh = None
    grown: Grown = None
    weights_only: WeightsOnly = False

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `migrate`'s functions."""
        return {"fresh": self.fresh or (), "grown": self.grown or (), "weights_only": self.weights_only}

    def words(self) -> list[str]:
        """As they were typed, for a command that is to be given them, too."""
        pairs = [
            *(("--fresh", pattern) for pattern in self.fresh or ()),
            *(("--grown", pattern) for pattern in self.grown or ()),
        ]
        return [*(word for pair in pairs for word in pair), *(["--weights-only"] if self.weights_only else [])]


def spread(command: Callable[..., None]) -> Callable[..., None]:
    """A command for typer. The fields of a dataclass parameter, such as Hints, replace it."""
    of_command = inspect.signature(command, eval_str=True).parameters
    kinds = {name: parameter.annotation for name, parameter in of_command.items()}
    records = {name: kind for name, kind in kinds.items() if isinstance(kind, type) and is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in of_command.items():
        fields_ = inspect.signature(records[name]).parameters.values() if name in records else [parameter]
        of = get_type_hints(records[name], include_extras=True) if name in records else kinds
        parameters += [one.replace(kind=one.KEYWORD_ONLY, annotation=of[one.name]) for one in fields_]

    def called(**values: Any) -> None:
        instances = {
            name: kind(**{one.name: values.pop(one.name) for one in fields(kind)}) for name, kind in records.items()
        }
        command(**values, **instances)

    called.__name__, called.__doc__ = command.__name__, command.__doc__
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return called


def _settings(typed: Iterable[str]) -> dict[str, Any]:
    """The values of `--set`, each NAME once."""
    from migrate import surfaces
    from migrate.bytes import json_text

    try:
        return json_text.once(surfaces.setting(text, json_text.once) for text in typed)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--set") from error


def _without_doubles(pairs: Iterable[tuple[str, Any]], option: str) -> dict[str, Any]:
    from migrate.bytes import json_text

    try:
        return json_text.once(pairs)
    except json_text.SaidTwiceError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error


def _json(source: str | None, option: str, kind: type) -> Any:
    """A file of JSON, or the JSON itself; a mapping also in a pickle, as it was kept of `get_config()`."""
    if source is None:
        return None
    inline = source.lstrip().startswith(("{", "["))
    shown = "the value" if inline else source
    from migrate.bytes import hint_files

    try:
        text = source.encode() if inline else hint_files.read(source)
    except OSError as error:
        raise typer.BadParameter(f"{source} cannot be read: {error.strerror}", param_hint=option) from error
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from error
    if kind is dict and not inline:
        from migrate.bytes import safe_pickle

        if safe_pickle.is_pickle(text):
            return safe_pickle.loads_config(text, source)
    form = FORMS[kind]
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _without_doubles(pairs, option))  # of any UTF
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"{shown} is not JSON: {error}; it must be {form}", param_hint=option) from error
    if not isinstance(value, kind):
        raise typer.BadParameter(f"{shown} holds other JSON; it must be {form}", param_hint=option)
    return value
