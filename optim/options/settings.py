"""All options of one optimizer: its parts, made and checked together."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypedDict

from optim import lazy
from optim.algorithm import Algorithm
from optim.arguments import LearningRate
from optim.bits.storage import Storage
from optim.errors import HyperparameterError, UnsupportedError
from optim.options import exclusive
from optim.options.accumulation import Accumulation
from optim.options.adaptive_clipping import AdaptiveClipping, AdaptiveGradClip
from optim.options.averages import Averages
from optim.options.base import Option, Part
from optim.options.cautious import Caution
from optim.options.clipping import Clipping
from optim.options.executor import ExecutorChoice
from optim.options.lazy_rows import LazyRows
from optim.options.lookahead import Lookahead, SlowWeights
from optim.options.loss_scale import LossScale
from optim.options.master_copies import MasterCopies
from optim.options.option_objects import EMAOption, GradientsClipOption, combine, explicit_fields
from optim.options.rate import Rate
from optim.options.rate_multipliers import RateMultipliers
from optim.options.repeated_rows import RepeatedRows
from optim.options.slot_dtype import SlotDtype
from optim.options.slot_placement import SlotPlacement
from optim.options.stochastic_average import StochasticAverage
from optim.options.stochastic_rounding import StochasticRounding
from optim.options.weight_decay import WeightDecay

if TYPE_CHECKING:
    from optim.layouts.policies import Placement
    from optim.state.state import State
    from optim.state.tracked import Tracked


class Options(TypedDict, total=False):
    """Types of the keyword arguments that `Optimizer` explains and every optimizer passes on."""

    clipnorm: float | None
    clipvalue: float | None
    global_clipnorm: float | None
    clip_order: str | None
    adaptive_grad_clip: AdaptiveGradClip | Mapping[str, Any] | float | None
    use_ema: bool | None
    ema_momentum: float | None
    ema_overwrite_frequency: int | None
    ema_start: str | None
    jit_compile: bool | None
    stochastic_average: StochasticAverage | Mapping[str, Any] | None
    weight_decay: float | None
    decoupled_weight_decay: bool
    learning_rate_in_weight_decay: bool
    weight_decay_exclude: Sequence[str]
    learning_rate_multipliers: Mapping[str, float] | None
    lazy_rows: Sequence[str]
    repeated_rows: Sequence[str]
    lookahead: Lookahead | Mapping[str, Any] | None
    cautious: bool
    slot_placement: Placement
    gradient_accumulation_steps: int | None
    count_calls: bool
    loss_scale: float | str | None
    loss_scale_growth_steps: int | None
    master_copies: bool
    slot_dtype: str | None
    stochastic_rounding: bool
    rounding_seed: int
    executor: str
    lr: LearningRate | None
    loss_scale_factor: float | None
    decay: float


class Settings:
    """The parts of an optimizer.

    Raises:
      HyperparameterError: out of range or contradictory; it names the argument.
    """

    def __init__(
        self,
        options: Mapping[str, Any],
        shared: Mapping[str, Any],
        algorithm: Algorithm,
        state: State,
        explicit: Iterable[str] | None,
    ):
        """Make the parts.

        Args:
          options: keyword arguments that options own. shared: the others of `Optimizer`.
          explicit: names of the arguments that the caller gave; None: those that have a value.
        """
        values = {**_complete(options, algorithm.owner), **shared}
        self._state = state
        self.accumulation = Accumulation(values["gradient_accumulation_steps"], values["count_calls"], state)
        self.rate = Rate(values["learning_rate"], values["lr"], values["decay"], algorithm, state, self.accumulation)
        self.multipliers = RateMultipliers(values["learning_rate_multipliers"], state.tracked)
        self.clipping = Clipping(_combined(GradientsClipOption, "gradients_clip_option", values))
        self.averages = Averages(_combined(EMAOption, "ema_option", values), values["stochastic_average"], state)
        self.weight_decay = WeightDecay(values, state.tracked, algorithm.rule)
        self.adaptive_clipping = AdaptiveClipping(values["adaptive_grad_clip"])
        self.caution = Caution(values["cautious"])
        self.lookahead = SlowWeights(values["lookahead"])
        self.lazy_rows = LazyRows(values["lazy_rows"])
        self.repeated_rows = RepeatedRows(values["repeated_rows"])
        self.placement = SlotPlacement(values["slot_placement"])
        scale = _one_of_two_names("loss_scale", "loss_scale_factor", values)
        self.loss_scale = LossScale(scale, values["loss_scale_growth_steps"], state)
        self.masters = MasterCopies(values["master_copies"], state)
        self.slot_dtypes = SlotDtype(values["slot_dtype"], state)
        self.rounding = StochasticRounding(values["stochastic_rounding"], values["rounding_seed"])
        self.execution = ExecutorChoice(values["executor"], values["jit_compile"])
        self._owners = {name: part for part in self for name in part.options}
        self._of_whole: frozenset[str] = frozenset()
        self._algorithm = algorithm
        objects = (explicit_fields(values[name]) for name in ("gradients_clip_option", "ema_option"))
        explicit = (
            [n for n, v in (*options.items(), *shared.items()) if v is not None] if explicit is None else explicit
        )
        self.explicit = set(explicit).union(*objects)
        """Options that the caller chose; the others have the defaults of `optim`."""
        self._check()

    def __iter__(self) -> Iterator[Part]:
        return (part for part in vars(self).values() if isinstance(part, Part))

    @property
    def looks_at_sums(self) -> bool:
        """Whether norms of gradients, or whether they are finite, matter."""
        return self.clipping.has_norms or self.loss_scale.is_used

    def watch(self, changed: Callable[[], None]) -> None:
        """Let `changed` be called whenever an option, or the kind of learning rate, changes."""
        for part in self:
            part.changed = changed

    def join(self, whole: Iterable[Part], state: State) -> None:
        """Belong to one group of an optimizer: take the options that act on all groups, and the state of the group."""
        shared = {type(part): part for part in whole}
        for name, part in list(vars(self).items()):
            if type(part) in shared:
                vars(self)[name] = shared[type(part)]
        for part in [part for part in self if type(part) not in shared]:
            part.join(state, self.accumulation)
        self._owners = {name: part for part in self for name in part.options}
        self._of_whole = frozenset(name for part in shared.values() for name in part.options)
        self._check()

    def report_change(self) -> None:
        """Call what `watch` was given."""
        self.rate.changed()

    def get(self, name: str) -> Any:
        """Return the current value of an option."""
        return self._owners[name].get(name)

    def change(self, name: str, value: Any) -> None:
        """Change an option from the next step on, or raise."""
        if name in self._of_whole:
            raise UnsupportedError(f"{name} acts on all groups together; set {name} of the Groups, not of a member")
        part = self._owners[name]
        self._change(part.change, name, value)
        self.explicit.add(name)

    def replace_default(self, name: str, value: Any) -> None:
        """Give an option that the caller did not choose another default, before the first step, or raise."""
        self._change(self._owners[name].replace_default, name, value)

    def _change(self, change: Callable[[str, Any], None], name: str, value: Any) -> None:
        before = self.get(name)
        change(name, value)
        try:
            self._check()
        except (HyperparameterError, UnsupportedError):
            change(name, before)
            raise
        self._owners[name].changed()

    def algorithm(self) -> Algorithm:
        """That of the optimizer, with what options make of its rule."""
        rule = self._algorithm.updating_rule
        if rule is None:
            return self._algorithm
        decayed = self.weight_decay.wrap(self.caution.wrap(rule))
        return replace(self._algorithm, rule=self.lookahead.wrap(self.adaptive_clipping.wrap(decayed)))

    def config(self) -> dict[str, Any]:
        """The keyword arguments again, as JSON values."""
        return {name: value for part in self for name, value in part.config().items()}

    def live(self) -> dict[str, Any]:
        """Arguments of which `config` has no, or only a JSON value, as objects."""
        rate = self.rate.source
        is_number = lazy.is_variable(rate) or rate is None
        return {"slot_placement": self.placement.slot_placement} | ({} if is_number else {"learning_rate": rate})

    def _check(self) -> None:
        """Refuse options that the algorithm, or one another, cannot keep."""
        rule, owner = self._algorithm.updating_rule, self._algorithm.owner
        self.weight_decay.check(rule, owner)
        if rule is None:
            for option in ("learning_rate_multipliers", "master_copies", "adaptive_grad_clip", "cautious", "lookahead"):
                if self.get(option):
                    raise HyperparameterError(f"{option} would have no effect: {owner} has its own update_step")
        elif self.lazy_rows.patterns and not rule.elementwise:
            raise HyperparameterError(f"lazy_rows: a step of {owner} cannot leave single rows out")
        exclusive.check(
            lazy_rows=self.lazy_rows.patterns,
            lookahead=self.lookahead.lookahead,
            cautious=self.caution.cautious,
            adaptive_grad_clip=self.adaptive_clipping.adaptive_grad_clip,
        )
        if "slot_dtype" not in self._of_whole:  # a group without such slots is fine if another has them
            self.slot_dtypes.check(self._algorithm.updating_rules, owner, has_lazy_rows=bool(self.lazy_rows.patterns))
        self.check_rounding(is_by_rule=rule is not None)
        self.repeated_rows.check(
            self.clipping.option,
            accumulates=self.accumulation.is_used,
            is_coupled=not self.weight_decay.decoupled_weight_decay,
            own_step=owner if rule is None else None,
        )

    def check_rounding(self, *, is_by_rule: bool) -> None:
        """Refuse stochastic rounding, or its seed, without effect."""
        exclusive.check(master_copies=self.masters.master_copies, stochastic_rounding=self.rounding.stochastic_rounding)
        self.rounding.check(is_by_rule, self.slot_dtypes.slot_dtype, self._algorithm.owner)

    def storage(self) -> Storage:
        """How slots and variables are stored."""
        rounding = self.rounding
        return Storage(self.slot_dtypes.slot_dtype, rounding.stochastic_rounding, rounding.rounding_seed)

    def add_slots(self, new: Sequence[Tracked]) -> None:
        """Make the slots that options need."""
        policy = self.placement.slot_placement
        for tracked in new:
            self.averages.add_slot(tracked, policy, self.masters.state_dtype(tracked))
            self.masters.add_slot(tracked, policy)
            self.accumulation.add_slots(tracked, policy)


def _combined(kind: Any, argument: str, values: Mapping[str, Any]) -> Any:
    return combine(kind, argument, values[argument], {field.name: values[field.name] for field in fields(kind)})


PARTS: tuple[type[Part], ...] = (
    *(
        Clipping,
        AdaptiveClipping,
        Averages,
        ExecutorChoice,
        WeightDecay,
        RateMultipliers,
        LazyRows,
        RepeatedRows,
        Caution,
        SlowWeights,
    ),
    *(SlotPlacement, Accumulation, LossScale, MasterCopies, SlotDtype, StochasticRounding, Rate),
)
OPTIONS: Mapping[str, Option] = {
    **{name: option for part in PARTS for name, option in part.options.items()},
    "lr": Option(None, "old name of `learning_rate`"),
    "loss_scale_factor": Option(None, "Keras 3's name of a constant `loss_scale`"),
}
"""Every keyword argument that options own, in the order of the signature."""


def with_options(signature: inspect.Signature) -> inspect.Signature:
    """A signature whose `**options` are written out, without `self`."""
    parameters = [p for name, p in signature.parameters.items() if name != "self" and p.kind is not p.VAR_KEYWORD]
    if not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        return signature.replace(parameters=parameters)
    names = {p.name for p in parameters}
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(n, kind, default=o.default, annotation=Any) for n, o in OPTIONS.items() if n not in names]
    return signature.replace(parameters=[*parameters, *more])


def set_scale(parts: Settings, factor: float | None) -> None:
    """Set `loss_scale` under its other name."""
    parts.change("loss_scale", factor)


class _Attribute:
    """An option as an attribute of the optimizers."""

    def __init__(self, name: str):
        self._name = name
        self.__doc__ = OPTIONS[name].meaning

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self._settings(instance).get(self._name)

    def __set__(self, instance: Any, value: Any) -> None:
        self._settings(instance).change(self._name, value)

    def _settings(self, instance: Any) -> Settings:
        settings = vars(instance).get("_settings")
        if isinstance(settings, Settings):
            return settings
        raise AttributeError(f"{self._name} is an option, which is there once the constructor of Optimizer was called")


def add_attributes(cls: type) -> None:
    """Make an attribute of each option, which acts from the next step on where it is set, or raises."""
    for name in (name for part in PARTS for name in part.options):
        setattr(cls, name, _Attribute(name))


def _one_of_two_names(name: str, other: str, values: Mapping[str, Any]) -> Any:
    """An argument that has two names. Raises HyperparameterError: they contradict each other."""
    one, two = values[name], values[other]
    if one is not None and two is not None and one != two:
        raise HyperparameterError(f"{other}={two!r} contradicts {name}={one!r}; give {name} only")
    return two if one is None else one


def _complete(options: Mapping[str, Any], owner: str) -> dict[str, Any]:
    """All options by name, those that were not given at their defaults. Raises TypeError: an unknown one."""
    unknown = [name for name in options if name not in OPTIONS]
    if unknown:
        raise TypeError(f"{owner}() got an unexpected keyword argument {unknown[0]!r}")
    defaults = {name: option.default for name, option in OPTIONS.items()}
    return {**defaults, **options}


def documentation() -> str:
    """The options as entries of a docstring's `Args`."""
    wrapper = textwrap.TextWrapper(116, initial_indent="      ", subsequent_indent="        ")
    return "\n".join(line for n, option in OPTIONS.items() for line in wrapper.wrap(f"{n}: {option.meaning}."))
