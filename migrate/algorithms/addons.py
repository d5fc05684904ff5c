"""Convert configs of other projects' optimizers to Keras's terms, if the rule is one of Keras's with an option.

| class | project, source | rule |
|---|---|---|
| AdamW, SGDW | TensorFlow Addons 0.6 - 0.23, `weight_decay_optimizers.py` | Adam, SGD; first p ← p·(1 − weight_decay) |
| OptimizerWithDecoupledWeightDecay | the same, `extend_with_decoupled_weight_decay` | also of `_EXTENDED_BY` |
| AdamWOptimizer, MomentumWOptimizer | `tf.contrib.opt` 1.15, `weight_decay_optimizers.py` | the same |
| AdamWeightDecay | transformers, tf-models-official | Adam; first p ← p·(1 − weight_decay_rate·lr) |
| LazyAdam, LazyAdamOptimizer | TensorFlow Addons, `tf.contrib.opt` | Adam; rows without a gradient keep their state |
| AdaMaxOptimizer | `tf.contrib.opt` 1.15 | Adamax |
| LAMB | TensorFlow Addons, tf-models-official | Lamb; λ·p inside of the step |
| Yogi | TensorFlow Addons 0.8 - 0.23, `yogi.py` | Yogi; its arguments are called beta1 and beta2 |
| RectifiedAdam, AdaBelief, NovoGrad, ProximalAdagrad | TensorFlow Addons | those of `optim`, under the same names |
| COCOB, ConditionalGradient | TensorFlow Addons | the same |
| LARS | tf-models-official | LARS, which `tf.contrib.opt` has, too; decay joins the gradient before its norm |
| AdamWeightDecayOptimizer | google-research/bert, `optimization.py` | the same without bias correction |
| NadamOptimizer | `tf.contrib.opt` 1.15 | Adam, with Nesterov's momentum and no schedule of it |
| DistributedX | Horovod 0.19 and earlier, `_keras/__init__.py` | X, of gradients that are averaged first |

MultiOptimizer (`discriminative_layer_training.py`) keeps its optimizers in dicts with `weights`, and no checkpoint
tracks these. Any other class either has a class in `optim` (`algorithms`), or `migrate` refuses it by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrate.claims import confirming
from migrate.errors import MissingHintError
from migrate.generations import traits
from optim.errors import UnsupportedError

PACKAGE = "Addons"
PER_STEP = "weight_decay_per_step"
"""Setting: a weight decay that is not multiplied by the learning rate."""
PER_RATE = "weight_decay_per_rate"
"""Setting: a weight decay that is multiplied by the learning rate, as in `optim`.

It is for classes of a generation without weight decay.
"""
AVERAGED = "average_decay"
"""Setting: the decay of MovingAverage around the optimizer."""
EXCLUDED = "weight_decay_exclude"
LAZY = "lazy"
CORRECTED = "bias_correction"
NESTEROV = "nesterov"
DECAYED = {"AdamW": "Adam", "SGDW": "SGD", "AdamWOptimizer": "AdamOptimizer", "MomentumWOptimizer": "MomentumOptimizer"}
EXTENDED = "OptimizerWithDecoupledWeightDecay"
"""The name that `extend_with_decoupled_weight_decay` of TensorFlow Addons gives to the classes that it makes."""
_EXTENDED_BY = {
    "AdamW": frozenset({"beta_1", "beta_2", "amsgrad"}),
    "SGDW": frozenset({"momentum", "nesterov"}),
    "RMSprop": frozenset({"rho", "momentum", "centered"}),
    "Adadelta": frozenset({"rho", "epsilon"}),
    "Adagrad": frozenset({"initial_accumulator_value", "epsilon"}),
    "Ftrl": frozenset({"initial_accumulator_value", "learning_rate_power"}),
    "Adamax": frozenset({"beta_1", "beta_2"}),
    "Nadam": frozenset({"beta_1", "beta_2"}),
}
"""Class that `extend_with_decoupled_weight_decay` makes, or the class that it extends -> keys of its config.

No class of Keras that comes later in this table has all these keys, except for `_BY_NAME`.
"""
_BY_NAME = ("Adamax", "Nadam")
"""Their configs are the same except for `name`, which is the class's name unless the program gave another."""
LAZY_CLASSES = {"LazyAdam": "Adam", "LazyAdamOptimizer": "AdamOptimizer"}
BERT = "AdamWeightDecayOptimizer"
OWNERS: Mapping[str, tuple[str, ...]] = {
    CORRECTED: (BERT,),
    NESTEROV: ("NadamOptimizer",),
    PER_STEP: (*DECAYED, EXTENDED),
    PER_RATE: ("AdamWeightDecay", BERT),
    LAZY: tuple(LAZY_CLASSES),
}
"""Options that change the rule of Keras's class -> the classes that have them."""
DISTRIBUTED = "Distributed"
_ALIKE = ("RectifiedAdam", "AdaBelief", "Yogi", "NovoGrad", "ProximalAdagrad", "LAMB", "COCOB", "ConditionalGradient")
ADDONS = (*DECAYED, *LAZY_CLASSES, *_ALIKE)
"""Classes of TensorFlow Addons whose rule is known."""
OTHERS = (*ADDONS, "AdamWeightDecay", "LARS")
"""Classes of other projects that get a warning if a program registered a class under their name."""
RENAMED = {"Yogi": {"beta1": "beta_1", "beta2": "beta_2"}, "LAMB": {"weight_decay_rate": "weight_decay"}}
MULTIPLE = "MultiOptimizer"


def is_known(class_name: str) -> bool:
    """Return whether a class is one of TensorFlow Addons, by the package that Keras registers for it."""
    return class_name.rpartition(">")[0] == PACKAGE


def as_registered(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an optimizer's Keras JSON with its class called `Addons>Yogi`.

    Keras 2.12 to 2.15 store `Yogi` instead, in a wrapper and from `serialize`, next to the module and that name.
    """
    plain, registered, module = (document.get(key) for key in ("class_name", "registered_name", "module"))
    is_theirs = registered == f"{PACKAGE}>{plain}" and str(module).partition(".")[0] == "tensorflow_addons"
    return {**document, "class_name": registered} if is_theirs else document


def setting(name: str, config: Mapping[str, Any]) -> str:
    """Return the setting's name in `as_keras` for a variable of that name."""
    key = {"weight_decay": PER_STEP, "weight_decay_rate": PER_RATE}.get(name, name)
    known = key if key in config else name
    return RENAMED["LAMB"].get(known, known) if known not in config else known


def as_keras(
    class_name: str, config: Mapping[str, Any], generation: str, is_stored: bool = False, user_class: str = ""
) -> tuple[str, dict[str, Any]]:
    """Return class and config of Keras or tf.train, with options of `optim` for what these do not have.

    Args:
      is_stored: whether the source itself specifies the class. If so, a class whose config does not specify how much
        weights decay is another class.
      user_class: the class that the user specifies as well.

    Raises:
      UnsupportedError: MultiOptimizer, with no state or several; a class that decays weights and does not specify how
        much.
      MissingHintError: Addons made the class from one of several classes.
    """
    plain, settings = class_name.rpartition(">")[2].rpartition(".")[2], dict(config)
    if plain == MULTIPLE and traits(generation).has_multi_optimizer:
        raise UnsupportedError(
            "the optimizer is MultiOptimizer, which contains several optimizers, each for some of the"
            " variables; a target has one. Load the model in its program, or with keras.saving.load_model, and"
            " save the optimizers by name: tf.train.Checkpoint(model=model, first=optimizer.optimizers[0],"
            " second=optimizer.optimizers[1]). Then migrate each one with --optimizer first or --optimizer"
            " second and its --optimizer-config"
        )
    if not traits(generation).is_extended_by_addons:  # later ones have classes of the same names
        return class_name, settings
    if plain == MULTIPLE:
        raise UnsupportedError(
            "the optimizer is MultiOptimizer, and TensorFlow Addons saves only its number of steps: no file"
            " contains the slots of its optimizers. If a program still has the optimizers, save them by name,"
            " tf.train.Checkpoint(model=model, base=first, head=second), and migrate each one with --optimizer"
            " base or --optimizer head and its --optimizer-config. If not, start new optimizers for the"
            " variables that optimizer_specs in the config lists"
        )
    if plain == EXTENDED and settings:
        if "weight_decay" not in settings:
            raise UnsupportedError(
                f"the optimizer is {EXTENDED} without weight_decay in its config, which TensorFlow Addons"
                " always saves. The file was altered, or this is another class of that name. To migrate the"
                f" state for a custom rule, add {confirming('own_rule', True)}"
            )
        base = _extended(settings, user_class)
        if base is not None:
            return DECAYED.get(base, base), _decayed(settings, {"weight_decay": PER_STEP})
    decays = {"weight_decay": PER_STEP} if plain in DECAYED else {"weight_decay_rate": PER_RATE}
    if plain in DECAYED and (not is_stored or "weight_decay" in settings or "exclude_from_weight_decay" in settings):
        return DECAYED[plain], _decayed(settings, decays)
    if plain == "AdamWeightDecay":
        return "Adam", _decayed(settings, decays)
    if plain == BERT:
        return plain, {**_decayed(settings, decays), CORRECTED: False}
    if plain == "NadamOptimizer":
        return plain, {**settings, NESTEROV: True}
    if plain in LAZY_CLASSES:
        return LAZY_CLASSES[plain], {**settings, LAZY: True}
    if plain.startswith(DISTRIBUTED):
        return plain.removeprefix(DISTRIBUTED), settings
    settings = {RENAMED.get(plain, {}).get(key, key): value for key, value in settings.items()}
    if plain in ("LAMB", "LARS") and "exclude_from_weight_decay" in settings:
        settings[EXCLUDED] = settings.pop("exclude_from_weight_decay")
    return plain if is_known(class_name) else class_name, settings


def _extended(config: Mapping[str, Any], user_class: str) -> str | None:
    """Return the class given to `extend_with_decoupled_weight_decay`, None if it is not one of `_EXTENDED_BY`."""
    fitting = [name for name, keys in _EXTENDED_BY.items() if keys <= config.keys()]
    if not fitting or fitting[0] not in _BY_NAME:
        return next(iter(fitting), None)
    choice = next((name for name in (user_class, config.get("name")) if name in _BY_NAME), None)
    if choice is None:
        ways = " or ".join(confirming("class_name", name) for name in _BY_NAME)
        raise MissingHintError(
            f"the optimizer is {EXTENDED}, the name that TensorFlow Addons gives every class with weight"
            f" decay. Its config fits {' and '.join(_BY_NAME)}: choose with {ways}"
        )
    return choice


def implied(class_name: str, is_confirmed: bool, generation: str) -> set[str]:
    """Return the options that a class implies.

    Args:
      is_confirmed: whether the user specifies which class Addons extended. If so, the class also implies its decay.
    """
    decays = {PER_STEP, EXCLUDED} if class_name == EXTENDED and is_confirmed else set()
    return decays | as_keras(class_name, {}, generation)[1].keys()


def _decayed(config: Mapping[str, Any], decays: Mapping[str, str]) -> dict[str, Any]:
    """Return a config with its decay and exclusion patterns under the names of this module."""
    settings = {decays.get(key, key): value for key, value in config.items()}
    if "exclude_from_weight_decay" in settings:
        settings.setdefault(EXCLUDED, settings["exclude_from_weight_decay"] or [])
        del settings["exclude_from_weight_decay"]
    return settings


def doubt(class_name: str, generation: str, is_stored: bool, taken: str) -> tuple[str, str]:
    """Return why a class may not have the rule that `as_keras` assigns, and what confirms it; empty if it must have it.

    Args:
      is_stored: whether the source itself specifies the class. If so, a class of Addons has its registered name,
        `Addons>...`.
      taken: the class of Keras that `as_keras` assigns.
    """
    plain = class_name.rpartition(">")[2]
    decayed = next((name for name, inner in DECAYED.items() if inner == taken), taken)
    if plain == EXTENDED and decayed in _EXTENDED_BY:
        text = (
            f"the class is {plain}, the name that TensorFlow Addons gives every class with weight decay; dtopt"
            f" assumes {taken}"
        )
        return text, confirming("class_name", decayed)
    is_registered = is_stored and traits(generation).registers_addons
    if is_registered and plain == "LARS":
        text = "the class is LARS, a name that tf-models and other packages use; dtopt assumes tf-models-official"
        return text, confirming("class_name", plain)
    if is_registered and class_name == "Custom>AdamWeightDecay":
        text = (
            f"a program registered the class {plain}, as autokeras does; dtopt assumes the one of transformers"
            " and tf-models"
        )
        return text, confirming("class_name", plain)
    if is_registered and plain in ADDONS and not is_known(class_name):
        return unregistered("the class", class_name), confirming("class_name", plain)
    if not plain.startswith(DISTRIBUTED):
        return "", ""
    inner = plain.removeprefix(DISTRIBUTED)
    text = (
        f"the class is {plain}, the name that Horovod gives {inner} when it averages gradients; dtopt assumes {inner}"
    )
    return text, confirming("class_name", inner)


def summed(name: Any) -> str:
    """Return why an optimizer may not step with each gradient; empty if its name is not one of Horovod's.

    Horovod gives its version of a class X the same class name, X, and names the optimizer DistributedX. It counts each
    batch that it sums as a step (`_keras/__init__.py`, `gradient_aggregation_eager.py` of 0.28; run on TF 2.9).
    """
    if not isinstance(name, str) or not name.startswith(DISTRIBUTED):
        return ""
    return (
        f"the optimizer is named {name}, as Horovod names it. With backward_passes_per_step above 1, a step"
        " uses the sum of several batches and each batch counts as a step; dtopt assumes 1"
    )


def unregistered(what: str, class_name: str) -> str:
    """Return why a class with a name from Addons may be another: the source lacks the name that Addons registers.

    Args:
      what: the thing that is of this class.
    """
    return (
        f"the source calls {what} {class_name}; TensorFlow Addons would write"
        f" {PACKAGE}>{class_name.rpartition('>')[2]}. It may be a custom class of that name; dtopt assumes the"
        " one of Addons"
    )


def rate_doubt(class_name: str, rate: Any) -> str:
    """Return why a learning rate given as a number may not be that of the next step; empty if it is."""
    if class_name.rpartition(">")[2] != BERT or isinstance(rate, Mapping):
        return ""
    return (
        f"learning_rate is {rate!r}, but BERT's create_optimizer changes the rate in the graph: it warms it up"
        " and then decays it. Give the schedule as learning_rate in --optimizer-config"
    )


def hidden(class_name: str, generation: str) -> Mapping[str, str]:
    """Return options that a class has and does not save -> what `migrate` assumes for them."""
    if not traits(generation).is_extended_by_addons:
        return {}
    plain = class_name.rpartition(">")[2]
    amount = PER_STEP if plain in DECAYED else PER_RATE if plain in ("AdamWeightDecay", BERT) else None
    unsaid = (
        {}
        if amount is None
        else {amount: f"the source does not contain the weight decay of {plain}; dtopt assumes no decay"}
    )
    if plain != "AdamWeightDecay":
        return unsaid
    return {
        **unsaid,
        "clipnorm": "AdamWeightDecay of tf-models clips all gradients together (--set global_clipnorm=1.0) and does not"
        " save that; the class of transformers does not clip. dtopt assumes no clipping",
    }
