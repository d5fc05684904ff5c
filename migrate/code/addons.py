"""Translate optimizers outside of Keras and tf.train that wrap or are an algorithm of `optim`.

Sources: `tensorflow_addons/optimizers/` 0.12 and 0.23 (weight_decay_optimizers.py, lamb.py, lazy_adam.py),
`tensorflow/contrib/opt/python/training/` 1.15 (weight_decay_optimizers.py, lazy_adam_optimizer.py),
`transformers/optimization_tf.py` 4.30, `official/nlp/optimization.py` 2.15; classes that are a rule of `optim`:
`tensorflow_addons/optimizers/` 0.23 (rectified_adam.py, adabelief.py, yogi.py, novograd.py, lamb.py), contrib 1.15
(lars_optimizer.py), `keras_contrib/optimizers/` 0.0.2 (yogi.py, lars.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from migrate.algorithms import addons as checkpoints
from migrate.code import meanings, signatures, targets
from migrate.code.meanings import Meaning, Old, Value
from migrate.code.releases import KERAS, TENSORFLOW, Release
from migrate.releases import modules
from migrate.releases.modules import ADDONS, CONTRIB, KERAS_CONTRIB
from optim.errors import UnsupportedError

Given = Mapping[str, Value]
ADVICE = {"NadamOptimizer": "its kernel is another Nadam than Keras's (keras#15710): choose optim.Nadam knowingly"}
"""What to do instead, by class."""


def meaning(name: str, given: Given, release: Release) -> Meaning:
    """Return the meaning of a call of one of these classes, `name` canonical.

    Raises UnsupportedError, with advice, if `optim` lacks the rule.
    """
    cls = name.rpartition(".")[2]
    rule = RULES.get(name)
    if rule is None:
        advice = ADVICE.get(cls, f"optim has no {cls}: write it as an optim.Rule, or choose another on purpose")
        raise UnsupportedError(advice)
    return rule(given, release)


def _keras(cls: str, given: Given, release: Release) -> Meaning:
    return meanings.of(Old("tensorflow.keras.optimizers", cls, cls, TENSORFLOW, modules.ALONE[ADDONS]), given, release)


def _tf_train(cls: str, algorithm: str, given: Given, release: Release) -> Meaning:
    return meanings.of(Old("tensorflow.train", cls, algorithm, TENSORFLOW, modules.ALONE[CONTRIB]), given, release)


def _without(given: Given, *names: str) -> dict[str, Value]:
    return {key: value for key, value in given.items() if key not in names}


def _per_step(inner: Meaning, given: Given, algorithm: str) -> Meaning:
    decay = given.get("weight_decay")
    if decay is None:
        raise UnsupportedError("weight_decay is not given")
    if _is_given(given, "exclude_from_weight_decay"):
        raise UnsupportedError("exclude_from_weight_decay matches differently there: give optim's weight_decay_exclude")
    more = {"weight_decay": decay, targets.DECAY_PER_RATE: Value.of(False)}
    return meanings.combined(inner, algorithm, more, {"weight_decay": "weight_decay"})


def _adamw(given: Given, release: Release) -> Meaning:
    own = _without(given, "weight_decay", "exclude_from_weight_decay")
    return _per_step(_keras("Adam", own, release), given, "AdamW")


def _sgdw(given: Given, release: Release) -> Meaning:
    own = _without(given, "weight_decay", "exclude_from_weight_decay")
    own.setdefault("learning_rate", Value("0.001", 0.001))  # not SGD's 0.01
    return _per_step(_keras("SGD", own, release), given, "SGD")


def _contrib_adamw(given: Given, release: Release) -> Meaning:
    inner = _tf_train("AdamOptimizer", "Adam", _without(given, "weight_decay"), release)
    return _per_step(inner, given, "AdamW")


def _contrib_momentumw(given: Given, release: Release) -> Meaning:
    inner = _tf_train("MomentumOptimizer", "SGD", _without(given, "weight_decay"), release)
    return _per_step(inner, given, "SGD")


def _lazy_adam(given: Given, release: Release) -> Meaning:
    inner = _keras("Adam", given, release)
    return meanings.combined(inner, "Adam", {"lazy_rows": Value('[".*"]')}, {})


def _contrib_lazy_adam(given: Given, release: Release) -> Meaning:
    inner = _tf_train("AdamOptimizer", "Adam", given, release)
    return meanings.combined(inner, "Adam", {"lazy_rows": Value('[".*"]')}, {})


def _weight_decay_exclude(given: Given) -> dict[str, Value]:
    if _is_given(given, "include_in_weight_decay"):
        raise UnsupportedError("include_in_weight_decay wins over exclusions: give optim's weight_decay_exclude")
    name = "exclude_from_weight_decay"
    return {"weight_decay_exclude": given[name]} if _is_given(given, name) else {}


def _weight_decay_rate(given: Given, inner: Meaning, more: dict[str, Value]) -> Meaning:
    """Translate p <- p - lr * rate * p before Adam's step, as in AdamW."""
    rate = given.get("weight_decay_rate", Value("0.0", 0.0))
    arguments = {"weight_decay": rate, **_weight_decay_exclude(given), **more}
    origin = {"weight_decay": "weight_decay_rate", "weight_decay_exclude": "exclude_from_weight_decay"}
    origin |= {"global_clipnorm": "gradient_clip_norm"} if "global_clipnorm" in more else {}
    return meanings.combined(inner, "AdamW", arguments, {k: v for k, v in origin.items() if v in given})


OWN = ("weight_decay_rate", "include_in_weight_decay", "exclude_from_weight_decay", "gradient_clip_norm")


def _transformers(given: Given, release: Release) -> Meaning:
    return _weight_decay_rate(given, _keras("Adam", _without(given, *OWN), release), {})


def _official(given: Given, release: Release) -> Meaning:
    norm = given.get("gradient_clip_norm", Value("1.0", 1.0))
    twice = [key for key in ("clipnorm", "clipvalue", "global_clipnorm") if key in given]
    if twice and norm.literal != 0:
        raise UnsupportedError(
            f"it clips twice, to gradient_clip_norm={norm.text} and then by {', '.join(twice)}: leave one"
        )
    more = {"global_clipnorm": norm} if norm.literal != 0 else {}
    return _weight_decay_rate(given, _keras("Adam", _without(given, *OWN), release), more)


BASE = ("learning_rate", "lr", "decay", "clipnorm", "clipvalue", "global_clipnorm", "name")
"""Arguments of the base classes."""


def _same_rule(
    old: str, algorithm: str, given: Given, release: Release, *, renamed: Mapping[str, str] | None = None
) -> Meaning:
    """Translate a class with the arguments and rule of a class of `optim`, under other names and defaults."""
    module, _, cls = old.rpartition(".")
    known = signatures.of(module, cls, None)
    assert known is not None
    own: dict[str, Value] = {}
    origin: dict[str, str] = {}
    for name, default in known.parameters:
        if name in (*BASE, "use_locking"):
            continue
        new = (renamed or {}).get(name, name)
        own[new] = given[name] if name in given else Value.of(default)
        origin |= {new: name} if name in given else {}
    own_rate = next(name for name in ("learning_rate", "lr") if name in known.names)
    rate: dict[str, Value] = (
        {} if {"lr", "learning_rate"} & set(given) else {own_rate: Value.of(known.default(own_rate))}
    )
    base = _base(module, {**rate, **{name: value for name, value in given.items() if name in BASE}}, release)
    kept = {key: value for key, value in base.arguments.items() if key in (*BASE, "clip_order")}
    origin |= {key: name for key, name in base.origin.items() if key in kept and name in given}
    return Meaning(algorithm, {**kept, **own}, origin, notes=base.notes)


def _base(module: str, given: Given, release: Release) -> Meaning:
    if module == CONTRIB:
        return _tf_train("GradientDescentOptimizer", "SGD", given, release)
    return meanings.of(Old("keras.optimizers", "SGD", "SGD", KERAS, modules.ALONE[KERAS_CONTRIB]), given, release)


WORDS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation", "activation", "rectify", "grad_averaging")
"""Arguments that are no numbers."""


def _addons(cls: str, algorithm: str, given: Given, release: Release) -> Meaning:
    """Translate a class of TensorFlow Addons that is one of `optim`, by the table for its checkpoints."""
    unseen = [name for name in WORDS if name in given and not given[name].known]
    if unseen:
        raise UnsupportedError(f"{', '.join(unseen)} is not a literal: write it out")
    names = {**checkpoints.RENAMED.get(cls, {}), "exclude_from_weight_decay": checkpoints.EXCLUDED}
    renamed = {old: new for old, new in names.items() if old in given}
    own = {renamed.get(name, name): value for name, value in given.items()}
    largest = {"amsgrad": own.pop("amsgrad")} if cls == "NovoGrad" and "amsgrad" in own else {}
    found = meanings.of(Old(ADDONS, cls, algorithm, TENSORFLOW, modules.ALONE[ADDONS]), own, release)
    found = meanings.combined(found, algorithm, largest, {key: key for key in largest})  # configs do not store it
    back = {new: old for old, new in renamed.items()}
    return replace(found, origin={key: back.get(name, name) for key, name in found.origin.items()})


def _contrib_lars(given: Given, release: Release) -> Meaning:
    if _is_given(given, "skip_list"):
        raise UnsupportedError(
            "skip_list holds parts of names: give optim.LARS exclude_from_layer_adaptation and weight_decay_exclude"
            " with the same as regular expressions"
        )
    renamed = {"eeta": "trust_coefficient", "use_nesterov": "nesterov"}
    meaning = _same_rule(f"{CONTRIB}.LARSOptimizer", "LARS", _without(given, "skip_list"), release, renamed=renamed)
    arguments = {key: value for key, value in meaning.arguments.items() if key != "skip_list"}
    return Meaning("LARS", arguments, meaning.origin, notes=meaning.notes)


def _keras_contrib_yogi(given: Given, release: Release) -> Meaning:
    """Translate Yogi: its second moment starts at 0, and an epsilon of None is Keras's."""
    renamed = {"epsilon": Value("1e-07", 1e-7)} if given.get("epsilon", Value.of(0.0)).literal is None else {}
    meaning = _same_rule(f"{KERAS_CONTRIB}.Yogi", "Yogi", {**given, **renamed}, release)
    arguments = {**meaning.arguments, "initial_accumulator_value": Value.of(0.0)}
    return Meaning("Yogi", arguments, meaning.origin, notes=meaning.notes)


def _keras_contrib_lars(given: Given, release: Release) -> Meaning:
    """Translate LARS: it reads the norm of its weights before it has any, so it is only momentum."""
    own = _without(given, "weight_decay", "eeta", "epsilon")
    own.setdefault("momentum", Value("0.9", 0.9))
    meaning = meanings.of(Old("keras.optimizers", "SGD", "SGD", KERAS, modules.ALONE[KERAS_CONTRIB]), own, release)
    note = "LARS of keras-contrib finds no weights for its norm, so it is plain momentum; the paper's is optim.LARS"
    return Meaning("SGD", meaning.arguments, meaning.origin, meaning.reasons, (*meaning.notes, note))


def _is_given(given: Given, name: str) -> bool:
    return name in given and given[name].literal is not None


RULES: dict[str, Callable[[Given, Release], Meaning]] = {
    **{
        f"{ADDONS}.{cls}": partial(_addons, cls, {"LAMB": "Lamb"}.get(cls, cls))
        for cls in ("RectifiedAdam", "AdaBelief", "Yogi", "NovoGrad", "LAMB")
    },
    f"{CONTRIB}.LARSOptimizer": _contrib_lars,
    f"{KERAS_CONTRIB}.Yogi": _keras_contrib_yogi,
    f"{KERAS_CONTRIB}.LARS": _keras_contrib_lars,
    f"{KERAS_CONTRIB}.lars": _keras_contrib_lars,
    f"{ADDONS}.AdamW": _adamw,
    f"{ADDONS}.SGDW": _sgdw,
    f"{ADDONS}.LazyAdam": _lazy_adam,
    f"{CONTRIB}.AdamWOptimizer": _contrib_adamw,
    f"{CONTRIB}.MomentumWOptimizer": _contrib_momentumw,
    f"{CONTRIB}.LazyAdamOptimizer": _contrib_lazy_adam,
    "transformers.AdamWeightDecay": _transformers,
    "official.nlp.optimization.AdamWeightDecay": _official,
}
