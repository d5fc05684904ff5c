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

Arguments = Mapping[str, Value]
ADVICE = {"NadamOptimizer": "its kernel is another Nadam than Keras's (keras#15710): choose optim.Nadam knowingly"}
"""What to do instead, by class."""


def meaning(name: str, arguments: Arguments, release: Release) -> Meaning:
    """Return the meaning of a call of one of these classes, `name` canonical.

    Raises UnsupportedError, with advice, if `optim` lacks the rule.
    """
    cls = name.rpartition(".")[2]
    rule = RULES.get(name)
    if rule is None:
        advice = ADVICE.get(cls, f"optim has no {cls}: write it as an optim.Rule, or choose another on purpose")
        raise UnsupportedError(advice)
    return rule(arguments, release)


def _keras(cls: str, arguments: Arguments, release: Release) -> Meaning:
    return meanings.of(
        Old("tensorflow.keras.optimizers", cls, cls, TENSORFLOW, modules.ALONE[ADDONS]), arguments, release
    )


def _tf_train(cls: str, algorithm: str, arguments: Arguments, release: Release) -> Meaning:
    return meanings.of(Old("tensorflow.train", cls, algorithm, TENSORFLOW, modules.ALONE[CONTRIB]), arguments, release)


def _without(arguments: Arguments, *names: str) -> dict[str, Value]:
    return {key: value for key, value in arguments.items() if key not in names}


def _per_step(inner: Meaning, arguments: Arguments, algorithm: str) -> Meaning:
    decay = arguments.get("weight_decay")
    if decay is None:
        raise UnsupportedError("weight_decay is not given")
    if _is_given(arguments, "exclude_from_weight_decay"):
        raise UnsupportedError("exclude_from_weight_decay matches differently there: give optim's weight_decay_exclude")
    extra_arguments = {"weight_decay": decay, targets.DECAY_PER_RATE: Value.of(False)}
    return meanings.combined(inner, algorithm, extra_arguments, {"weight_decay": "weight_decay"})


def _adamw(arguments: Arguments, release: Release) -> Meaning:
    base_arguments = _without(arguments, "weight_decay", "exclude_from_weight_decay")
    return _per_step(_keras("Adam", base_arguments, release), arguments, "AdamW")


def _sgdw(arguments: Arguments, release: Release) -> Meaning:
    base_arguments = _without(arguments, "weight_decay", "exclude_from_weight_decay")
    base_arguments.setdefault("learning_rate", Value("0.001", 0.001))  # not SGD's 0.01
    return _per_step(_keras("SGD", base_arguments, release), arguments, "SGD")


def _contrib_adamw(arguments: Arguments, release: Release) -> Meaning:
    inner = _tf_train("AdamOptimizer", "Adam", _without(arguments, "weight_decay"), release)
    return _per_step(inner, arguments, "AdamW")


def _contrib_momentumw(arguments: Arguments, release: Release) -> Meaning:
    inner = _tf_train("MomentumOptimizer", "SGD", _without(arguments, "weight_decay"), release)
    return _per_step(inner, arguments, "SGD")


def _lazy_adam(arguments: Arguments, release: Release) -> Meaning:
    inner = _keras("Adam", arguments, release)
    return meanings.combined(inner, "Adam", {"lazy_rows": Value('[".*"]')}, {})


def _contrib_lazy_adam(arguments: Arguments, release: Release) -> Meaning:
    inner = _tf_train("AdamOptimizer", "Adam", arguments, release)
    return meanings.combined(inner, "Adam", {"lazy_rows": Value('[".*"]')}, {})


def _weight_decay_exclude(arguments: Arguments) -> dict[str, Value]:
    if _is_given(arguments, "include_in_weight_decay"):
        raise UnsupportedError("include_in_weight_decay wins over exclusions: give optim's weight_decay_exclude")
    name = "exclude_from_weight_decay"
    return {"weight_decay_exclude": arguments[name]} if _is_given(arguments, name) else {}


def _weight_decay_rate(arguments: Arguments, inner: Meaning, extra_arguments: dict[str, Value]) -> Meaning:
    """Translate p <- p - lr * rate * p before Adam's step, as in AdamW."""
    rate = arguments.get("weight_decay_rate", Value("0.0", 0.0))
    new_arguments = {"weight_decay": rate, **_weight_decay_exclude(arguments), **extra_arguments}
    origin = {"weight_decay": "weight_decay_rate", "weight_decay_exclude": "exclude_from_weight_decay"}
    origin |= {"global_clipnorm": "gradient_clip_norm"} if "global_clipnorm" in extra_arguments else {}
    return meanings.combined(inner, "AdamW", new_arguments, {k: v for k, v in origin.items() if v in arguments})


DECAY_ARGUMENTS = ("weight_decay_rate", "include_in_weight_decay", "exclude_from_weight_decay", "gradient_clip_norm")


def _transformers(arguments: Arguments, release: Release) -> Meaning:
    return _weight_decay_rate(arguments, _keras("Adam", _without(arguments, *DECAY_ARGUMENTS), release), {})


def _official(arguments: Arguments, release: Release) -> Meaning:
    norm = arguments.get("gradient_clip_norm", Value("1.0", 1.0))
    limits = [key for key in ("clipnorm", "clipvalue", "global_clipnorm") if key in arguments]
    if limits and norm.literal != 0:
        raise UnsupportedError(
            f"it clips twice, to gradient_clip_norm={norm.text} and then by {', '.join(limits)}: leave one"
        )
    extra_arguments = {"global_clipnorm": norm} if norm.literal != 0 else {}
    return _weight_decay_rate(
        arguments, _keras("Adam", _without(arguments, *DECAY_ARGUMENTS), release), extra_arguments
    )


BASE = ("learning_rate", "lr", "decay", "clipnorm", "clipvalue", "global_clipnorm", "name")
"""Arguments of the base classes."""


def _same_rule(
    old: str, algorithm: str, arguments: Arguments, release: Release, *, renamed: Mapping[str, str] | None = None
) -> Meaning:
    """Translate a class with the arguments and rule of a class of `optim`, under other names and defaults."""
    module, _, cls = old.rpartition(".")
    signature = signatures.of(module, cls, None)
    assert signature is not None
    new_arguments: dict[str, Value] = {}
    origin: dict[str, str] = {}
    for name, default in signature.parameters:
        if name in (*BASE, "use_locking"):
            continue
        new = (renamed or {}).get(name, name)
        new_arguments[new] = arguments[name] if name in arguments else Value.of(default)
        origin |= {new: name} if name in arguments else {}
    rate_name = next(name for name in ("learning_rate", "lr") if name in signature.names)
    rate: dict[str, Value] = (
        {} if {"lr", "learning_rate"} & set(arguments) else {rate_name: Value.of(signature.default(rate_name))}
    )
    base = _base(module, {**rate, **{name: value for name, value in arguments.items() if name in BASE}}, release)
    base_arguments = {key: value for key, value in base.arguments.items() if key in (*BASE, "clip_order")}
    origin |= {key: name for key, name in base.origin.items() if key in base_arguments and name in arguments}
    return Meaning(algorithm, {**base_arguments, **new_arguments}, origin, notes=base.notes)


def _base(module: str, arguments: Arguments, release: Release) -> Meaning:
    if module == CONTRIB:
        return _tf_train("GradientDescentOptimizer", "SGD", arguments, release)
    return meanings.of(Old("keras.optimizers", "SGD", "SGD", KERAS, modules.ALONE[KERAS_CONTRIB]), arguments, release)


WORDS = ("exclude_from_weight_decay", "exclude_from_layer_adaptation", "activation", "rectify", "grad_averaging")
"""Arguments that are no numbers."""


def _addons(cls: str, algorithm: str, arguments: Arguments, release: Release) -> Meaning:
    """Translate a class of TensorFlow Addons that is one of `optim`, by the table for its checkpoints."""
    unseen = [name for name in WORDS if name in arguments and not arguments[name].known]
    if unseen:
        raise UnsupportedError(f"{', '.join(unseen)} is not a literal: write it out")
    names = {**checkpoints.RENAMED.get(cls, {}), "exclude_from_weight_decay": checkpoints.EXCLUDED}
    renamed = {old: new for old, new in names.items() if old in arguments}
    new_arguments = {renamed.get(name, name): value for name, value in arguments.items()}
    largest = {"amsgrad": new_arguments.pop("amsgrad")} if cls == "NovoGrad" and "amsgrad" in new_arguments else {}
    class_meaning = meanings.of(Old(ADDONS, cls, algorithm, TENSORFLOW, modules.ALONE[ADDONS]), new_arguments, release)
    # configs do not store amsgrad
    class_meaning = meanings.combined(class_meaning, algorithm, largest, {key: key for key in largest})
    old_names = {new: old for old, new in renamed.items()}
    return replace(class_meaning, origin={key: old_names.get(name, name) for key, name in class_meaning.origin.items()})


def _contrib_lars(arguments: Arguments, release: Release) -> Meaning:
    if _is_given(arguments, "skip_list"):
        raise UnsupportedError(
            "skip_list holds parts of names: give optim.LARS exclude_from_layer_adaptation and weight_decay_exclude"
            " with the same as regular expressions"
        )
    renamed = {"eeta": "trust_coefficient", "use_nesterov": "nesterov"}
    meaning = _same_rule(f"{CONTRIB}.LARSOptimizer", "LARS", _without(arguments, "skip_list"), release, renamed=renamed)
    new_arguments = {key: value for key, value in meaning.arguments.items() if key != "skip_list"}
    return Meaning("LARS", new_arguments, meaning.origin, notes=meaning.notes)


def _keras_contrib_yogi(arguments: Arguments, release: Release) -> Meaning:
    """Translate Yogi: its second moment starts at 0, and an epsilon of None is Keras's."""
    epsilon = {"epsilon": Value("1e-07", 1e-7)} if arguments.get("epsilon", Value.of(0.0)).literal is None else {}
    meaning = _same_rule(f"{KERAS_CONTRIB}.Yogi", "Yogi", {**arguments, **epsilon}, release)
    new_arguments = {**meaning.arguments, "initial_accumulator_value": Value.of(0.0)}
    return Meaning("Yogi", new_arguments, meaning.origin, notes=meaning.notes)


def _keras_contrib_lars(arguments: Arguments, release: Release) -> Meaning:
    """Translate LARS: it reads the norm of its weights before it has any, so it is only momentum."""
    sgd_arguments = _without(arguments, "weight_decay", "eeta", "epsilon")
    sgd_arguments.setdefault("momentum", Value("0.9", 0.9))
    meaning = meanings.of(
        Old("keras.optimizers", "SGD", "SGD", KERAS, modules.ALONE[KERAS_CONTRIB]), sgd_arguments, release
    )
    note = "LARS of keras-contrib finds no weights for its norm, so it is plain momentum; the paper's is optim.LARS"
    return Meaning("SGD", meaning.arguments, meaning.origin, meaning.reasons, (*meaning.notes, note))


def _is_given(arguments: Arguments, name: str) -> bool:
    return name in arguments and arguments[name].literal is not None


RULES: dict[str, Callable[[Arguments, Release], Meaning]] = {
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
