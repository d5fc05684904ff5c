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
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Generation:
    """One generation. Ask for it with `traits`.

    Attributes:
      classes: algorithms that it has.
      others: algorithms that other projects built on it.

    Configs and arguments:
      has_configs: a class has `get_config`, under Keras's names.
      has_tf_train_names: classes, arguments and slots are called as in tf.train.
      unsaved: arguments that no config has.
      options: options that a config may name besides an algorithm's own; `clipnorm` stands for all three limits.
      keywords: what `**kwargs` of a constructor may hold; `schedule_decay` is Nadam's.
      is_extended_by_addons: TensorFlow Addons, tf-models and tf.contrib build their classes on it.
      is_extended_by_packages: keras-adamw, keras-rectified-adam and keras-lookahead build theirs on it.
      has_multi_optimizer: a MultiOptimizer of a program saves the state of its optimizers.
      has_time_decay: `decay` lowers the learning rate as 1 / (1 + decay · iterations).
      ignores_decay: its classes take `decay` and ignore it.
      ignores_decay_keyword: so do constructors.
      has_averages: it has `use_ema`, and configs name all limits.
      accumulates_gradients: it has `gradient_accumulation_steps`.
      omits_unused_limits: a config names a limit only if it is set.
      legacy_flag: what `is_legacy_optimizer` of a config is.
      own_package: what is before `>` in the name of a built-in class in .h5 and SavedModels, which name no module (run
        in TF 2.4 to 2.14, tf_keras 2.18, Keras 3.0 to 3.15); None if it was not run.

    Defaults:
      epsilon: None if its releases differ.
      no_epsilon: classes without the argument.
      rmsprop_epsilon, lion_rate: of one class.
      has_rates_of_papers: defaults of the learning rate are those of the papers.
      initial_accumulator: where Adagrad starts.
      rmsprop_start: where the mean of RMSprop starts, if not at 0.
      zero_epsilon_is_default: an epsilon of 0 means 1e-7.
      has_schedule_decay: Nadam has `schedule_decay`.
      schedule_decay_key: what configs call it.
      cosine_decay_warms_up: CosineDecay has a warm-up.

    Rules:
      is_native: Keras's own code makes updates of plain ops, before OptimizerV2.
      adagrad_epsilon_inside: Adagrad adds epsilon inside the root.
      rmsprop_epsilon_inside: when RMSprop does.
      rmsprop_rate_outside, sgd_rate_outside: the slot of momentum has gradients without the learning rate.
      casts_hyperparameters: they are cast to the dtype of the variable.
      casts_rho: so is Adadelta's rho.
      multiplies_powers: powers of beta are variables that each step multiplies.
      has_sparse_kernels: rows without a gradient keep their state.
      squares_repeated_rows: gradients of repeated rows are squared before they are added.
      repeats_in_own_way: how gradients of repeated rows are added depends on the algorithm.
      averages_start: what moving averages begin with, as `optim` calls it.
      multiplies_product_by_variable: each variable's update multiplies Nadam's product of momenta.
      ignores_constraints: no constraint acts after a step.
      trains_in_float8: layers may be quantized to float8.
      has_lora: layers may have low-rank updates.

    Slots:
      sgd_momentum: whether SGD keeps slots without momentum: NEVER, WITH_MOMENTUM if some releases do, ALWAYS.
      keeps_idle_momentum: so do all of its classes, and no step reads them.
      rmsprop_has_momentum: RMSprop has `momentum` and `centered`.
      rmsprop_keeps_momentum: and always its slot.
      has_amsgrad: Adam has `amsgrad`.
      pads_amsgrad: Adam without amsgrad may list zeros of shape (1,).
      always_pads_amsgrad: it always does.
      builds_for_all: an optimizer is built once, for all trainable variables in the model's order.
      keeps_rate: object checkpoints keep the learning rate, if it is a number.
      has_slot_table: object checkpoints keep slots in a table of slot variables.
      reads_flags_at_compile: each compile asks which variables are trainable.

    Lists:
      lists_weights: there is a `get_weights`.
      list_orders: orders of slots.
      has_release_orders: its releases differ in the order, the newest comes last.
      shows_release_in_list: the scalars in a list show its release.
      changes_order_at_restore: a list made after a restore has another order.
      lists_updated_only: a list has slots of
        some trainable variables alone.
      names_in_list: how names of a list show slot and variable; empty if they do not.
      joins_paths: names of a list join the parts of a path.
      product_places: where a list has Nadam's product.
      lists_rate: a list has the learning rate.
      lists_loss_scale: and what a LossScaleOptimizer keeps.
      counts_always: every list has the counter.
      counter_dtypes: its dtypes, the one to write first.
      counts_in_program: the program keeps the counter and the learning rate, and its graph alone shows them.

    Models:
      has_keras1_layers, has_keras3_layers: configs of layers are those of Keras 1, or of Keras 3.
      loads_in_tf_keras: tf_keras loads its models as they are.
      keeps_labels: hinge losses take labels as they are.
      prefers_new_classes: tf_keras's new classes follow its rules more closely than the legacy ones.
      is_newer_than_v2: its classes replaced OptimizerV2.
    """

    name: str
    classes: frozenset[str] = frozenset()
    others: frozenset[str] = frozenset()

    has_configs: bool = True
    has_tf_train_names: bool = False
    unsaved: tuple[str, ...] = ()
    options: tuple[str, ...] = ("clipnorm", "decay")
    keywords: tuple[str, ...] = ()
    is_extended_by_addons: bool = False
    is_extended_by_packages: bool = False
    has_multi_optimizer: bool = False
    has_time_decay: bool = False
    ignores_decay: bool = False
    ignores_decay_keyword: bool = False
    has_averages: bool = False
    accumulates_gradients: bool = False
    omits_unused_limits: bool = False
    legacy_flag: bool | None = None
    own_package: str | None = None

    epsilon: float | None = 1e-7
    no_epsilon: tuple[str, ...] = ()
    rmsprop_epsilon: float | None = None
    lion_rate: float = 0.0001
    has_rates_of_papers: bool = False
    initial_accumulator: float = 0.1
    rmsprop_start: float = 0.0
    zero_epsilon_is_default: bool = False
    has_schedule_decay: bool = False
    schedule_decay_key: str = "schedule_decay"
    cosine_decay_warms_up: bool = False

    is_native: bool = False
    adagrad_epsilon_inside: bool = False
    rmsprop_epsilon_inside: str = NEVER
    rmsprop_rate_outside: bool = False
    sgd_rate_outside: bool = False
    casts_hyperparameters: bool = True
    casts_rho: bool = False
    multiplies_powers: bool = False
    has_sparse_kernels: bool = False
    squares_repeated_rows: bool = False
    repeats_in_own_way: bool = False
    averages_start: str = "initial"
    multiplies_product_by_variable: bool = False
    ignores_constraints: bool = False
    trains_in_float8: bool = False
    has_lora: bool = False

    sgd_momentum: str = NEVER
    keeps_idle_momentum: bool = False
    rmsprop_has_momentum: bool = True
    rmsprop_keeps_momentum: bool = False
    has_amsgrad: bool = True
    pads_amsgrad: bool = False
    always_pads_amsgrad: bool = False
    builds_for_all: bool = False
    keeps_rate: bool = False
    has_slot_table: bool = False
    reads_flags_at_compile: bool = False

    lists_weights: bool = True
    list_orders: tuple[str, ...] = (BY_VARIABLE,)
    has_release_orders: bool = False
    shows_release_in_list: bool = False
    changes_order_at_restore: bool = False
    lists_updated_only: bool = False
    names_in_list: str = ""
    joins_paths: bool = False
    product_places: tuple[str, ...] = (NOWHERE,)
    lists_rate: bool = False
    lists_loss_scale: bool = False
    counts_always: bool = False
    counter_dtypes: tuple[str, ...] = (INTEGER,)
    counts_in_program: bool = False

    has_keras1_layers: bool = False
    has_keras3_layers: bool = False
    loads_in_tf_keras: bool = False
    keeps_labels: bool = False
    prefers_new_classes: bool = False
    is_newer_than_v2: bool = False

    @property
    def registers_addons(self) -> bool:
        """Whether configs name classes of TensorFlow Addons."""
        return self.is_extended_by_addons and self.has_configs

    @property
    def is_slot_major(self) -> bool:
        """Whether every list has one slot of all variables after the other."""
        return self.list_orders == (BY_SLOT,)


_NATIVE = Generation(
    "",
    classes=_EVERYWHERE | {"Nadam"},
    others=frozenset({"RectifiedAdam", "AdaBelief", "Yogi"}),
    keywords=("clipnorm", "clipvalue"),
    is_extended_by_packages=True,
    has_time_decay=True,
    omits_unused_limits=True,
    has_rates_of_papers=True,
    initial_accumulator=0.0,
    has_schedule_decay=True,
    is_native=True,
    sgd_momentum=ALWAYS,
    keeps_idle_momentum=True,
    rmsprop_has_momentum=False,
    reads_flags_at_compile=True,
    list_orders=(BY_SLOT,),
)
_OF_KERAS_3 = frozenset({"Adafactor", "Lamb", "Muon", "ScheduleFreeAdamW"})
_NEW = Generation(
    "",
    classes=_EVERYWHERE | {"Nadam", "Ftrl", "AdamW", "Lion"},
    has_averages=True,
    adagrad_epsilon_inside=True,
    rmsprop_epsilon_inside=ALWAYS,
    casts_hyperparameters=False,
    builds_for_all=True,
    keeps_rate=True,
    counts_always=True,
    is_newer_than_v2=True,
)
_TABLE = (
    replace(
        _NATIVE,
        name=KERAS1,
        epsilon=1e-8,
        has_amsgrad=False,
        counter_dtypes=(FLOAT,),
        has_keras1_layers=True,
        keeps_labels=True,
    ),
    replace(
        _NATIVE,
        name=KERAS2,
        epsilon=None,
        pads_amsgrad=True,
        counter_dtypes=(INTEGER, FLOAT),
        keeps_labels=True,
    ),
    replace(
        _NATIVE,
        name=KERAS2_3,
        keywords=("clipnorm", "clipvalue", "lr", "epsilon", "decay", "schedule_decay"),
        pads_amsgrad=True,
        always_pads_amsgrad=True,
        product_places=(FIRST,),
        counts_always=True,
    ),
    replace(
        _NATIVE,
        name=OPTIMIZER_V1,
        pads_amsgrad=True,
        product_places=(NOWHERE, FIRST),
        counter_dtypes=(INTEGER, FLOAT),
        keeps_labels=True,
    ),
    Generation(
        OPTIMIZER_V2,
        classes=_EVERYWHERE | {"Nadam", "Ftrl"},
        others=frozenset(
            {"RectifiedAdam", "AdaBelief", "Yogi", "Lamb", "NovoGrad", "LARS", "COCOB"}
            | {"ConditionalGradient", "ProximalAdagrad"}
        ),
        unsaved=("beta",),
        keywords=("clipnorm", "clipvalue", "global_clipnorm", "lr", "decay", "schedule_decay"),
        is_extended_by_addons=True,
        is_extended_by_packages=True,
        has_time_decay=True,
        omits_unused_limits=True,
        legacy_flag=True,
        own_package="",
        zero_epsilon_is_default=True,
        has_schedule_decay=True,
        schedule_decay_key="decay",
        rmsprop_epsilon_inside=WITH_MOMENTUM,
        casts_rho=True,
        has_sparse_kernels=True,
        keeps_rate=True,
        has_slot_table=True,
        list_orders=(BY_SLOT,),
        changes_order_at_restore=True,
        lists_updated_only=True,
        names_in_list=SLOT_LAST,
        product_places=(FIRST,),
        counts_always=True,
        loads_in_tf_keras=True,
    ),
    replace(
        _NEW,
        name=EXPERIMENTAL,
        options=("clipnorm", "use_ema"),
        keywords=("mesh", "decay"),
        ignores_decay_keyword=True,
        own_package="Custom",
        rmsprop_epsilon_inside=NEVER,
        rmsprop_rate_outside=True,
        repeats_in_own_way=True,
        multiplies_product_by_variable=True,
        ignores_constraints=True,
        sgd_momentum=WITH_MOMENTUM,
        list_orders=(BY_SLOT, BY_VARIABLE),
        shows_release_in_list=True,
        product_places=(NOWHERE, LAST),
    ),
    replace(
        _NEW,
        name=OPTIMIZER,
        classes=_NEW.classes | {"Adafactor"},
        options=("clipnorm", "weight_decay", "use_ema"),
        keywords=("mesh",),
        legacy_flag=False,
        own_package="Custom",
        multiplies_product_by_variable=True,
        sgd_momentum=ALWAYS,
        names_in_list=VARIABLE_LAST,
        loads_in_tf_keras=True,
        prefers_new_classes=True,
    ),
    replace(
        _NEW,
        name=KERAS3,
        classes=_NEW.classes | _OF_KERAS_3,
        options=("clipnorm", "weight_decay", "use_ema", "gradient_accumulation_steps"),
        has_multi_optimizer=True,
        ignores_decay=True,
        accumulates_gradients=True,
        own_package="",
        lion_rate=0.001,
        squares_repeated_rows=True,
        cosine_decay_warms_up=True,
        averages_start="first_step",
        trains_in_float8=True,
        has_lora=True,
        has_release_orders=True,
        joins_paths=True,
        product_places=(FIRST, LAST),
        lists_rate=True,
        lists_loss_scale=True,
        has_keras3_layers=True,
        prefers_new_classes=True,
    ),
    Generation(
        TF1,
        classes=_EVERYWHERE | {"Ftrl"},
        others=frozenset({"LARS", "ProximalAdagrad"}),
        has_configs=False,
        has_tf_train_names=True,
        options=("clipnorm",),
        is_extended_by_addons=True,
        epsilon=1e-8,
        no_epsilon=("Adagrad",),
        rmsprop_epsilon=1e-10,
        rmsprop_start=1.0,
        rmsprop_epsilon_inside=ALWAYS,
        sgd_rate_outside=True,
        casts_rho=True,
        multiplies_powers=True,
        has_sparse_kernels=True,
        rmsprop_keeps_momentum=True,
        has_amsgrad=False,
        has_slot_table=True,
        lists_weights=False,
        counts_in_program=True,
    ),
)
_BY_NAME = {each.name: each for each in _TABLE}
_UNKNOWN = Generation("", omits_unused_limits=True)


def traits(name: str | None) -> Generation:
    """What a generation does; of None or another text, what is so unless a generation is known to differ."""
    return _BY_NAME.get(name or "", _UNKNOWN)


def having(trait: Callable[[Generation], bool]) -> frozenset[str]:
    """The names of generations with a trait."""
    return frozenset(each.name for each in _TABLE if trait(each))


STANDALONE = frozenset({KERAS1, KERAS2, KERAS2_3})
NATIVE = STANDALONE | {OPTIMIZER_V1}
"""Generations with Keras's own update code, before OptimizerV2."""
NEW = frozenset({EXPERIMENTAL, OPTIMIZER, KERAS3})


def check(name: str) -> str:
    """The name itself; HyperparameterError with the list if it is none of GENERATIONS."""
    if name not in GENERATIONS:
        raise HyperparameterError(f"unknown generation {name!r}; --generation takes one of: {', '.join(GENERATIONS)}")
    return name
