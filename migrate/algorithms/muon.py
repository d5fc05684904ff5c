"""Muon of Keras 3.10 on: momentum for matrices, Adam for the rest. Only variables that Adam updates have a second slot.

No file stores which variables these are. They follow from the rank, from `exclude_embeddings`, and from
`exclude_layers`, whose patterns Keras compares with a variable's path. Keras 3.13 has another rule under the same name:
its config has `rms_rate` and `adam_weight_decay`, and it leaves rank 3 to Adam. Muon of 3.10 to 3.12 cannot step on
TensorFlow: `variable.path` raises there.

Sources: `optimizers/muon.py` 3.10, 3.11 and 3.12 (all the same), 3.13, 3.14 and 3.15 (the same except for checks).
"""

from __future__ import annotations

from typing import Any

from migrate.algorithms import spec
from migrate.facts.rules import MUON as RULE
from migrate.facts.rules import NEW
from migrate.releases.narrowing import candidates
from optim.errors import HyperparameterError
from optim.rules.muon import MuonRule

NUMBERS = ("adam_beta_1", "adam_beta_2", "muon_a", "muon_b", "muon_c", "adam_lr_ratio", "momentum")
LATER = ("rms_rate", "adam_weight_decay")
"""Config keys that Keras 3.13 added."""


def _blocks(generation: str, config: spec.Config) -> tuple[spec.Blocks, ...]:
    return ((spec.Block(("m", "v"), last_of_some=True),),)


def _is_early(config: spec.Config) -> bool:
    """Return whether the config is one of Keras 3.10 to 3.12, or `optim` arguments with the same rule."""
    return bool(config.get("stacks", LATER[0] not in config))


def _arguments(config: spec.Config, generation: str) -> dict[str, Any]:
    decay = spec.number(config, "weight_decay") if config.get("weight_decay") is not None else 0.0
    arguments: dict[str, Any] = {key: spec.number(config, key) for key in NUMBERS}
    arguments |= {"epsilon": spec.epsilon(config, generation), "ns_steps": spec.whole(config, "ns_steps")}
    arguments |= {"nesterov": bool(config["nesterov"]), "weight_decay": decay, **_excluded(config)}
    if _is_early(config):
        return {**arguments, "rms_rate": None, "adam_weight_decay": decay}
    later = {key: None if config.get(key) is None else spec.number(config, key) for key in LATER}
    return {**arguments, **later}


def _excluded(config: spec.Config) -> dict[str, Any]:
    return {
        "exclude_layers": list(config.get("exclude_layers") or ()),
        "exclude_embeddings": bool(config.get("exclude_embeddings", True)),
    }


def _by_release(config: spec.Config, releases: spec.Releases) -> spec.ByRelease:
    if not _is_early(config):
        missing = (
            {"adam_weight_decay": "the source does not contain it; dtopt assumes no decay"}
            if LATER[1] not in config
            else {}
        )
        return {}, missing
    more = {"aspect_scale": True, "stacks": True}
    if RULE.of(releases) is not None:
        return more, {}
    text = (
        "the source contains neither the release nor rms_rate, which Keras 3.13 and later write. dtopt"
        " assumes the rule of 3.10 to 3.12, which scales by √max(1, rows/columns). For the later rule, give"
        " rms_rate and adam_weight_decay"
    )
    return more, {"aspect_scale": text}


def _check(config: spec.Config, generation: str, versions: spec.Versions) -> str | None:
    answer = RULE.of(candidates(generation, versions))
    if answer is None or (answer == NEW) != _is_early(config):
        return None
    has = "has no" if _is_early(config) else "has"
    return (
        f"the source is of Keras {versions.keras}, and its Muon {has} rms_rate, which is new in Keras 3.13:"
        " one of the two is wrong. The rule changed in that release, so save it again with the Keras that"
        " trained it"
    )


def _defaults(generation: str) -> dict[str, Any]:
    rule = {key: getattr(MuonRule, key).default for key in (*NUMBERS, "epsilon")}
    chosen = {key: getattr(MuonRule, key) for key in ("ns_steps", "nesterov", "exclude_embeddings")}
    return {"learning_rate": 0.001, **rule, **chosen, "exclude_layers": [], "weight_decay": 0.004}


def _has(config: spec.Config, slot: str, shape: spec.Shape, name: str) -> bool | None:
    """Return whether a variable has the slot. Only Adam's variables have `v`.

    None if it depends on how much of the path Keras uses as the variable's path. In a model inside a model, that may
    have fewer layers than here, or more. A pattern that matches the name of the variable's layer matches both. A
    pattern that matches only the unknown rest makes a list too long to fit.
    """
    if slot != "v":
        return True
    try:
        rule = MuonRule(stacks=_is_early(config), **{k: _as_rule(k, v) for k, v in _excluded(config).items()})
    except HyperparameterError:
        return None
    parts = name.split("/")
    paths = [f"_/{name}", *("/".join(parts[i:]) for i in range(max(1, len(parts) - 1)))]
    answers = {rule.uses_adam(shape, [path]) for path in paths}
    return answers.pop() if len(answers) == 1 else None


def _as_rule(key: str, value: Any) -> Any:
    from optim.arguments import patterns

    return patterns(key, value) if key == "exclude_layers" else value


def _in_float32(arguments: spec.Config, generation: str) -> dict[str, Any]:
    return {"float32_powers": True}


ALGORITHM = spec.Algorithm(
    name="Muon",
    slots=spec.slots_of(MuonRule(), m=("momentums", "momentum", "adam_momentums"), v=("adam_velocities", "velocity")),
    blocks=_blocks,
    arguments=_arguments,
    defaults=_defaults,
    in_float32=_in_float32,
    uses_count=True,
    check=_check,
    by_release=_by_release,
    has=_has,
    later=LATER,
    keras3_since="3.13.0",
)
