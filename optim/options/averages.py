"""Moving averages of the variables, kept next to them, and in their place: for good, or for a while."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, ClassVar

from optim import lazy, slot_layout
from optim.errors import UnsupportedError
from optim.options import exclusive
from optim.options.base import Option, Part
from optim.options.master_copies import target, write
from optim.options.option_objects import EMAOption, from_mapping
from optim.options.stochastic_average import StochasticAverage

if TYPE_CHECKING:
    import tensorflow as tf

    from optim.layouts import placement
    from optim.layouts.policies import Placement
    from optim.state.state import State
    from optim.state.tracked import Tracked
else:
    tf, placement = lazy.modules("tensorflow", "optim.layouts.placement")


class Averages(Part):
    """The averages in the slot `average`. `are_in` shows whether `swap` put them into the variables."""

    options: ClassVar = {
        "use_ema": Option(
            None,
            "keep exponential moving averages of the variables in the slot `average`; False by default",
        ),
        "ema_momentum": Option(
            None,
            "average ← ema_momentum · average + (1 − ema_momentum) · variable, in [0, 1]; 0.99 by default",
        ),
        "ema_overwrite_frequency": Option(
            None,
            "every so many steps variables become their averages, >= 1; None leaves it to `finalize_variable_values`",
        ),
        "ema_start": Option(
            None,
            'whether averages start as the variables are at `build` ("initial", as in Keras 2.9 and tf_keras; the'
            ' default) or after the first step ("first_step", as in Keras 3)',
        ),
        "stochastic_average": Option(
            None,
            "`StochasticAverage(start_averaging=0, average_period=10)`, or a mapping with its fields: `average` is the"
            " mean of what the variables are at every so many steps from a step on (Izmailov et al., 2018), used as"
            " that of `use_ema` is, with which it cannot be combined",
        ),
    }

    def __init__(self, option: EMAOption, stochastic: Any, state: State):
        self.option = option
        self.stochastic_average = from_mapping(StochasticAverage, "stochastic_average", stochastic)
        exclusive.check(use_ema=option.use_ema, stochastic_average=self.stochastic_average)
        self.are_in = False
        self._state = state

    def get(self, name: str) -> Any:
        return self.stochastic_average if name == "stochastic_average" else getattr(self.option, name)

    def config(self) -> dict[str, Any]:
        mean = self.stochastic_average
        return {**super().config(), "stochastic_average": None if mean is None else asdict(mean)}

    @property
    def is_used(self) -> bool:
        return self.option.use_ema or self.stochastic_average is not None

    def replace_default(self, name: str, value: Any) -> None:
        if name == "ema_start":  # there is no state of it
            self.option = replace(self.option, ema_start=value)
        else:
            self.change(name, value)

    def change(self, name: str, value: Any) -> None:
        if name in ("use_ema", "ema_start", "stochastic_average"):
            if value != self.get(name):
                super().change(name, value)
            return
        self.option = replace(self.option, **{name: value})

    def add_slot(self, tracked: Tracked, policy: Placement, dtype: Any) -> None:
        """Make the average of a variable, which starts as its value."""
        if self.is_used:
            self._state.new_copy(slot_layout.AVERAGE, tracked, policy, dtype)

    def momentum(self, xp: Any, iterations: Any) -> Any:
        """μ of average ← μ·average + (1 − μ)·variable in the step after `iterations` steps.

        A float eagerly, maybe a float64 tensor of `xp` in a function; 0 if that step's values are the first averages.
        """
        if self.stochastic_average is not None:
            return self.stochastic_average.momentum(xp, iterations)
        momentum = self.option.ema_momentum
        if not self.option.use_ema or self.option.ema_start == "initial":
            return momentum
        if isinstance(iterations, int):
            return momentum if iterations > 0 else 0.0
        return xp.cast(iterations > 0, "float64") * momentum

    def overwrites(self, iterations: Any) -> Any:
        """Whether the step after `iterations` steps ends with the averages in the variables: a bool, or a tensor."""
        every = self.option.ema_overwrite_frequency
        return (iterations + 1) % every == 0 if self.option.use_ema and every is not None else False

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """Overwrite model variables by their averages, if there are any. Raises UnsupportedError: no average was
        taken."""
        if not self.is_used:
            return
        self.check_not_swapped("finalize_variable_values")
        self._check_there_are_averages("finalize_variable_values")
        slots = self._state.slots
        variables = [self._state.tracked[variable] for variable in var_list]
        for tracked, average in [(t, slots.get(slot_layout.AVERAGE, t)) for t in variables]:
            write(slots, tracked, average.read_value())

    def swap_averages(self) -> None:
        """Exchange all variables and their averages, bit for bit; the next call brings each back.

        In between `apply_gradients`, `build`, `finalize_variable_values` and `save_checkpoint` raise.

        Raises:
          UnsupportedError: there are no averages, no average was taken yet, or inside a `tf.function`.
        """
        # By DTensor's own ops, which queue up behind what is pending on the mesh; a later local step waits for them.
        if not self.is_used:
            raise UnsupportedError(
                "there are no averages to swap in; make the optimizer with use_ema=True or stochastic_average="
            )
        if not tf.executing_eagerly():
            raise UnsupportedError("averages are swapped eagerly; call swap_averages outside of tf.function")
        self._check_there_are_averages("swap_averages")
        for tracked in self._state.tracked:
            average = self._state.slots.find(slot_layout.AVERAGE, tracked)
            if average is not None:
                self._exchange(tracked, average)
        self.are_in = not self.are_in

    def _exchange(self, tracked: Tracked, average: tf.Variable) -> None:
        slots = self._state.slots
        mean, bits = average.read_value(), target(slots, tracked).read_value()
        write(slots, tracked, mean, placement.relayout_bits)
        average.assign(placement.relayout_bits(bits, placement.layout_of(average)))

    @contextmanager
    def averages_swapped(self) -> Iterator[None]:
        """`with optimizer.averages_swapped(): evaluate()`: `swap_averages`, with its errors, before and after."""
        self.check_not_swapped("averages_swapped")
        self.swap_averages()
        try:
            yield
        finally:
            if self.are_in:  # the body may have swapped them out already
                self.swap_averages()

    def check_not_swapped(self, what: str) -> None:
        """Raises UnsupportedError while the averages are in the variables."""
        if self.are_in:
            raise UnsupportedError(
                f"{what}: the variables hold their moving averages now; leave the averages_swapped() block, or call"
                " swap_averages() again, first"
            )

    @property
    def first_step(self) -> int:
        """After how many steps there are averages."""
        return 1 if self.stochastic_average is None else self.stochastic_average.start_averaging + 1

    def were_taken(self) -> bool:
        """Whether there are averages of some variables."""
        steps = int(self._state.counter(slot_layout.ITERATIONS).now())
        return len(self._state.tracked) > 0 and steps >= self.first_step

    def _check_there_are_averages(self, before: str) -> None:
        if not self.were_taken():
            steps = "a step" if self.first_step == 1 else f"{self.first_step} steps"
            raise UnsupportedError(f"no average was taken yet: take {steps} before {before}")
