"""The generations of Keras optimizers, and what each of them does in all of its releases.

| name | releases |
|---|---|
| `keras1` | standalone Keras 1.x |
| `keras2` | standalone Keras 2.0 - 2.2.5 |
| `keras2.3` | standalone Keras 2.3 |
| `optimizer_v1` | tf.keras of TF 1.4 - 1.13, and what later releases keep of it |
| `optimizer_v2` | tf.keras of TF 1.14 - 2.10, `optimizers.legacy` from 2.11 on |
| `experimental` | `optimizers.experimental` and DTensor optimizers of TF 2.9 and 2.10 |
| `optimizer` | tf.keras 2.11 - 2.15 and tf_keras |
| `keras3` | Keras 3 |
| `tf1` | tf.train.* |

What differs between releases of one generation is a row of `facts`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

from optim.errors import HyperparameterError

KERAS1, KERAS2, KERAS2_3, OPTIMIZER_V1 = "keras1", "keras2", "keras2.3", "optimizer_v1"
OPTIMIZER_V2, EXPERIMENTAL, OPTIMIZER, KERAS3, TF1 = "optimizer_v2", "experimental", "optimizer", "keras3", "tf1"
GENERATIONS = (KERAS1, KERAS2, KERAS2_3, OPTIMIZER_V1, OPTIMIZER_V2, EXPERIMENTAL, OPTIMIZER, KERAS3, TF1)

BY_SLOT, BY_VARIABLE = "by slot", "by variable"
"""Orders of lists: one slot of all variables after the other, or all slots of one variable after the other."""
NOWHERE, FIRST, LAST = "nowhere", "first", "last"
"""Places of Nadam's product of momenta in a list of slots."""
SLOT_LAST, VARIABLE_LAST = "OPTIMIZER/VARIABLE/SLOT", "OPTIMIZER/SLOT/VARIABLE"
ALWAYS, WITH_MOMENTUM, NEVER = "always", "with momentum", "never"
FLOAT, INTEGER = "float32", "int64"
_EVERYWHERE = frozenset({"SGD", "RMSprop", "Adagrad", "Adadelta", "Adam", "Adamax"})


def _trait(text: str, default: Any = False) -> Any:
    return field(default=default, metadata={"text": text})


@dataclass(frozen=True)
class Generation:
    """One generation. Call `traits` to get one; `described` returns the meaning of each field."""

    name: str

    # Classes
    classes: frozenset[str] = _trait("algorithms that it has", frozenset())
    others: frozenset[str] = _trait("algorithms that other projects built on it", frozenset())

    # Configs and arguments
    has_configs: bool = _trait("a class has `get_config`, under Keras's names", True)
    has_tf_train_names: bool = _trait("classes, arguments and slots are called as in tf.train")
    unsaved: tuple[str, ...] = _trait("arguments that no config has", ())
    options: tuple[str, ...] = _trait(
        "options that a config may name in addition to an algorithm's arguments; `clipnorm` means all three limits",
        ("clipnorm", "decay"),
    )
    keywords: tuple[str, ...] = _trait("what `**kwargs` of a constructor may hold; `schedule_decay` is Nadam's", ())
    is_extended_by_addons: bool = _trait("TensorFlow Addons, tf-models and tf.contrib build their classes on it")
    is_extended_by_packages: bool = _trait("keras-adamw, keras-rectified-adam and keras-lookahead build theirs on it")
    has_multi_optimizer: bool = _trait("a MultiOptimizer of a program saves the state of its optimizers")
    has_time_decay: bool = _trait("`decay` lowers the learning rate as 1 / (1 + decay · iterations)")
    ignores_decay: bool = _trait("its classes take `decay` and ignore it")
    ignored: frozenset[tuple[str, str]] = _trait(
        "(keyword, class) that constructors take and ignore; no class if all of them do", frozenset()
    )
    has_averages: bool = _trait("it has `use_ema`, and configs name all limits")
    accumulates_gradients: bool = _trait("it has `gradient_accumulation_steps`")
    omits_unused_limits: bool = _trait("a config names a limit only if it is set")
    legacy_flag: bool | None = _trait("what `is_legacy_optimizer` of a config is", None)
    own_package: str | None = _trait(
        "what is before `>` in the name of a built-in class in .h5 and SavedModels; None if it was not run", None
    )

    # Defaults
    known_to_optim: str = _trait("what `optim.keras_differences` calls it", "")
    passes_float_steps: bool = _trait("schedules are called with a float")
    compiles_without_optimizer: bool = _trait("`compile` has a default optimizer")
    has_one_signature: bool = _trait("constructors are the same in all of its releases")
    epsilon: float | None = _trait("default of epsilon, None if its releases differ", 1e-7)
    epsilon_changed: bool = _trait("the default of epsilon changed within it, in one class or all")
    no_epsilon: tuple[str, ...] = _trait("classes without epsilon", ())
    rmsprop_epsilon: float | None = _trait("epsilon of RMSprop if it is another", None)
    lion_rate: float = _trait("learning rate of Lion", 0.0001)
    has_rates_of_papers: bool = _trait("defaults of the learning rate are those of the papers")
    initial_accumulator: float = _trait("where Adagrad starts", 0.1)
    rmsprop_start: float = _trait("where the mean of RMSprop starts, if not at 0", 0.0)
    zero_epsilon_is_default: bool = _trait("an epsilon of 0 means 1e-7")
    has_schedule_decay: bool = _trait("Nadam has `schedule_decay`")
    schedule_decay_key: str = _trait("what configs call `schedule_decay`", "schedule_decay")
    cosine_decay_warms_up: bool = _trait("CosineDecay has a warm-up")

    # Rules
    is_native: bool = _trait("Keras's own code makes updates of plain ops, before OptimizerV2")
    adagrad_epsilon_inside: bool = _trait("Adagrad adds epsilon inside the root")
    rmsprop_epsilon_inside: str = _trait("when RMSprop adds epsilon inside the root", NEVER)
    rmsprop_rate_outside: bool = _trait("the momentum of RMSprop has gradients without the learning rate")
    sgd_rate_outside: bool = _trait("the momentum of SGD has gradients without the learning rate")
    casts_hyperparameters: bool = _trait("hyperparameters are cast to the dtype of the variable", True)
    casts_rho: bool = _trait("Adadelta's rho is cast to the dtype of the variable")
    multiplies_powers: bool = _trait("powers of beta are variables that each step multiplies")
    has_sparse_kernels: bool = _trait("rows without a gradient keep their state")
    squares_repeated_rows: bool = _trait("gradients of repeated rows are squared before they are added")
    repeats_in_own_way: bool = _trait("how gradients of repeated rows are added depends on the algorithm")
    averages_start: str = _trait("what moving averages begin with, as `optim` calls it", "initial")
    multiplies_product_by_variable: bool = _trait("each variable's update multiplies Nadam's product of momenta")
    ignores_constraints: bool = _trait("no constraint acts after a step")
    trains_in_float8: bool = _trait("layers may be quantized to float8")
    has_lora: bool = _trait("layers may have low-rank updates")

    # Slots
    sgd_momentum: str = _trait(
        "whether SGD keeps slots without momentum: NEVER, WITH_MOMENTUM if some releases do, ALWAYS", NEVER
    )
    keeps_idle_momentum: bool = _trait("all of its classes keep slots of momentum that no step reads")
    rmsprop_has_momentum: bool = _trait("RMSprop has `momentum` and `centered`", True)
    rmsprop_keeps_momentum: bool = _trait("RMSprop always has its slot of momentum")
    has_amsgrad: bool = _trait("Adam has `amsgrad`", True)
    pads_amsgrad: bool = _trait("Adam without amsgrad may list zeros of shape (1,)")
    always_pads_amsgrad: bool = _trait("Adam without amsgrad always lists zeros of shape (1,)")
    builds_for_all: bool = _trait("an optimizer is built once, for all trainable variables in the model's order")
    keeps_rate: bool = _trait("object checkpoints keep the learning rate, if it is a number")
    has_slot_table: bool = _trait("object checkpoints keep slots in a table of slot variables")
    reads_flags_at_compile: bool = _trait("each compile asks which variables are trainable")

    # Lists
    lists_weights: bool = _trait("there is a `get_weights`", True)
    list_orders: tuple[str, ...] = _trait("orders of slots in a list", (BY_VARIABLE,))
    has_release_orders: bool = _trait("its releases differ in the order, the newest comes last")
    shows_release_in_list: bool = _trait("the scalars in a list show its release")
    changes_order_at_restore: bool = _trait("a list made after a restore has another order")
    lists_updated_only: bool = _trait("a list has slots of some trainable variables alone")
    names_in_list: str = _trait("how names of a list show slot and variable; empty if they do not", "")
    joins_paths: bool = _trait("names of a list join the parts of a path")
    product_places: tuple[str, ...] = _trait("where a list has Nadam's product", (NOWHERE,))
    lists_rate: bool = _trait("a list has the learning rate")
    lists_loss_scale: bool = _trait("a list has what a LossScaleOptimizer keeps")
    counts_always: bool = _trait("every list has the counter")
    counter_dtypes: tuple[str, ...] = _trait("dtypes of the counter, the one to write first", (INTEGER,))
    counts_in_program: bool = _trait(
        "the program keeps the counter and the learning rate, and its graph alone shows them"
    )

    # Models
    has_keras1_layers: bool = _trait("configs of layers are those of Keras 1")
    has_keras3_layers: bool = _trait("configs of layers are those of Keras 3")
    loads_in_tf_keras: bool = _trait("tf_keras loads its models as they are")
    keeps_labels: bool = _trait("hinge losses take labels as they are")
    prefers_new_classes: bool = _trait("tf_keras's new classes follow its rules more closely than the legacy ones")
    is_trial: bool = _trait("its classes are those of `optimizers.experimental`, before they were made the default")
    has_backends: bool = _trait("it runs on JAX and PyTorch, too")
    is_newer_than_v2: bool = _trait("its classes replaced OptimizerV2")

    @property
    def registers_addons(self) -> bool:
        """Whether configs name classes of TensorFlow Addons."""
        return self.is_extended_by_addons and self.has_configs

    @property
    def is_slot_major(self) -> bool:
        """Whether every list has one slot of all variables after the other."""
        return self.list_orders == (BY_SLOT,)


def _row(name: str, like: Generation, flags: str, **others: Any) -> Generation:
    """Return a generation that differs from another one by flags, which are true, and by other fields."""
    changes: dict[str, Any] = {**dict.fromkeys(flags.split(), True), **others}
    return replace(like, name=name, **changes)


_NATIVE = _row(
    "",
    Generation(""),
    "is_native is_extended_by_packages has_time_decay omits_unused_limits has_rates_of_papers has_schedule_decay"
    " keeps_idle_momentum reads_flags_at_compile",
    classes=_EVERYWHERE | {"Nadam"},
    others=frozenset({"RectifiedAdam", "AdaBelief", "Yogi"}),
    keywords=("clipnorm", "clipvalue"),
    initial_accumulator=0.0,
    sgd_momentum=ALWAYS,
    rmsprop_has_momentum=False,
    list_orders=(BY_SLOT,),
)
_NEW = _row(
    "",
    Generation(""),
    "has_averages adagrad_epsilon_inside builds_for_all keeps_rate counts_always is_newer_than_v2",
    classes=_EVERYWHERE | {"Nadam", "Ftrl", "AdamW", "Lion"},
    casts_hyperparameters=False,
    rmsprop_epsilon_inside=ALWAYS,
)
_TABLE = (
    _row(
        KERAS1,
        _NATIVE,
        "has_one_signature epsilon_changed has_keras1_layers keeps_labels",
        epsilon=1e-8,
        has_amsgrad=False,
        counter_dtypes=(FLOAT,),
    ),
    _row(KERAS2, _NATIVE, "epsilon_changed pads_amsgrad keeps_labels", epsilon=None, counter_dtypes=(INTEGER, FLOAT)),
    _row(
        KERAS2_3,
        _NATIVE,
        "has_one_signature pads_amsgrad always_pads_amsgrad counts_always",
        keywords=("clipnorm", "clipvalue", "lr", "epsilon", "decay", "schedule_decay"),
        product_places=(FIRST,),
    ),
    _row(
        OPTIMIZER_V1,
        _NATIVE,
        "epsilon_changed pads_amsgrad keeps_labels",
        product_places=(NOWHERE, FIRST),
        counter_dtypes=(INTEGER, FLOAT),
    ),
    _row(
        OPTIMIZER_V2,
        Generation(""),
        "is_extended_by_addons is_extended_by_packages has_time_decay omits_unused_limits passes_float_steps"
        " legacy_flag zero_epsilon_is_default has_schedule_decay casts_rho has_sparse_kernels keeps_rate has_slot_table"
        " changes_order_at_restore lists_updated_only counts_always loads_in_tf_keras",
        classes=_EVERYWHERE | {"Nadam", "Ftrl"},
        others=_NATIVE.others | {"Lamb", "NovoGrad", "LARS", "COCOB", "ConditionalGradient", "ProximalAdagrad"},
        unsaved=("beta",),
        keywords=("clipnorm", "clipvalue", "global_clipnorm", "lr", "decay", "schedule_decay"),
        ignored=frozenset({("decay", "Nadam"), ("lr", "Ftrl")}),  # run on TF 2.4 and 2.13
        known_to_optim="optimizer_v2",
        own_package="",
        schedule_decay_key="decay",
        rmsprop_epsilon_inside=WITH_MOMENTUM,
        list_orders=(BY_SLOT,),
        names_in_list=SLOT_LAST,
        product_places=(FIRST,),
    ),
    _row(
        EXPERIMENTAL,
        _NEW,
        "rmsprop_rate_outside is_trial repeats_in_own_way multiplies_product_by_variable ignores_constraints"
        " shows_release_in_list",
        options=("clipnorm", "use_ema"),
        keywords=("mesh", "decay"),
        ignored=frozenset({("decay", "")}),
        own_package="Custom",
        rmsprop_epsilon_inside=NEVER,
        sgd_momentum=WITH_MOMENTUM,
        list_orders=(BY_SLOT, BY_VARIABLE),
        product_places=(NOWHERE, LAST),
    ),
    _row(
        OPTIMIZER,
        _NEW,
        "has_one_signature multiplies_product_by_variable loads_in_tf_keras prefers_new_classes",
        classes=_NEW.classes | {"Adafactor"},
        options=("clipnorm", "weight_decay", "use_ema"),
        keywords=("mesh",),
        known_to_optim="tf_keras",
        legacy_flag=False,
        own_package="Custom",
        sgd_momentum=ALWAYS,
        names_in_list=VARIABLE_LAST,
    ),
    _row(
        KERAS3,
        _NEW,
        "compiles_without_optimizer has_one_signature has_backends has_multi_optimizer ignores_decay"
        " accumulates_gradients squares_repeated_rows cosine_decay_warms_up trains_in_float8 has_lora"
        " has_release_orders joins_paths lists_rate lists_loss_scale has_keras3_layers prefers_new_classes",
        classes=_NEW.classes | {"Adafactor", "Lamb", "Muon", "ScheduleFreeAdamW"},
        options=("clipnorm", "weight_decay", "use_ema", "gradient_accumulation_steps"),
        known_to_optim="keras3",
        own_package="",
        lion_rate=0.001,
        averages_start="first_step",
        product_places=(FIRST, LAST),
    ),
    _row(
        TF1,
        Generation(""),
        "has_tf_train_names is_extended_by_addons sgd_rate_outside casts_rho multiplies_powers has_sparse_kernels"
        " rmsprop_keeps_momentum has_slot_table counts_in_program",
        classes=_EVERYWHERE | {"Ftrl"},
        others=frozenset({"LARS", "ProximalAdagrad"}),
        has_configs=False,
        has_amsgrad=False,
        lists_weights=False,
        options=("clipnorm",),
        epsilon=1e-8,
        no_epsilon=("Adagrad",),
        rmsprop_epsilon=1e-10,
        rmsprop_start=1.0,
        rmsprop_epsilon_inside=ALWAYS,
    ),
)
_BY_NAME = {generation.name: generation for generation in _TABLE}
_UNKNOWN = Generation("", omits_unused_limits=True)


def traits(name: str | None) -> Generation:
    """Return what a generation does.

    For None or another text, return what holds unless a generation is known to differ.
    """
    return _BY_NAME.get(name or "", _UNKNOWN)


def having(trait: Callable[[Generation], bool]) -> frozenset[str]:
    """Return the names of generations with a trait."""
    return frozenset(generation.name for generation in _TABLE if trait(generation))


def described() -> dict[str, str]:
    """Return each field of a Generation, without its name, and the field's meaning."""
    return {attribute.name: attribute.metadata["text"] for attribute in fields(Generation) if attribute.metadata}


def check(name: str) -> str:
    """Return the name itself. Raises HyperparameterError with the list if it is not one of GENERATIONS."""
    if name not in GENERATIONS:
        raise HyperparameterError(f"unknown generation {name!r}; --generation takes one of: {', '.join(GENERATIONS)}")
    return name
