"""Check slots against bounds that every history of gradients keeps.

With m = (1-b1)·Σ b1^i·g_i and v = (1-b2)·Σ b2^i·g_i² over the same gradients, from zero, Cauchy and Schwarz give
m² <= v·(1-b1)²/(1-b2)·Σ (b1²/b2)^i. The sum has a term for each step taken. With u = max(b2·u, |g|) also
|m| <= u·(1-b1)·Σ (b1/b2)^i. The mean of gradients squared is at most the mean of their squares (Jensen). These bounds
break if a failed restore left slots at zero, or if slots are of another run or of other betas. Bounds that hold prove
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from migrate.algorithms import lazy_rows, repeated_rows
from migrate.algorithms.spec import ACCUMULATED, AVERAGE, SLOW
from migrate.bytes.messages import some
from migrate.claims import FILE, GRAPH, HINT, SET, UNINTERPRETED, Origin, confirming
from migrate.facts import counter as facts
from migrate.generations import traits
from migrate.models.time_steps import takes_one_step
from migrate.releases.narrowing import candidates
from migrate.state import OptimizerState
from optim.errors import HyperparameterError
from optim.slot_layout import ACCUMULATED_STEPS

MOMENTS = ("Adam", "AdamW", "Nadam", "Lamb", "RectifiedAdam", "Muon")
"""Algorithms whose m and v are averages of the same gradients and their squares."""
SLACK = 1.02
"""Factor on the bound: float32 rounds in each of thousands of steps."""
LOST = 1e-34
"""Some devices flush squares below this to zero, or lose their digits."""


@dataclass(frozen=True)
class Limit:
    """One bound. `is_broken(slot, by)` of flat arrays shows whether the first exceeds what the second allows.

    `text` describes the violation.
    """

    slot: str
    by: str
    text: str
    is_broken: Callable[[np.ndarray, np.ndarray], bool]


def of(state: OptimizerState) -> list[Limit]:
    """Return the bounds between slots of one variable that this algorithm keeps."""
    if not is_wide(state):
        return []
    settings, steps = state.hyperparameters, _counted(state)
    b1, b2 = (settings.get(name, settings.get(f"adam_{name}")) for name in ("beta_1", "beta_2"))
    limits = []
    if isinstance(b1, float) and isinstance(b2, float) and 0 < b1 < 1 and 0 < b2 < 1:
        with_betas = f"with beta_1 {b1:g} and beta_2 {b2:g}" + (f" in {steps} steps" if steps else "")
        if state.algorithm in MOMENTS and b1 * b1 < b2:
            factor = (1 - b1) ** 2 / (1 - b2) * _sum(b1 * b1 / b2, steps)
            text = f"slot m is larger than any gradients make it whose squares make v, {with_betas}"
            limits.append(Limit("m", "v", text, _square_above(factor)))
        if state.algorithm == "Adamax" and b1 < b2:
            factor = ((1 - b1) * _sum(b1 / b2, steps)) ** 2
            text = f"slot m is larger than any gradients make it whose maximum is u, {with_betas}"
            limits.append(Limit("m", "u", text, lambda m, u: _square_above(factor)(m, np.square(u))))
    if state.algorithm == "RMSprop":
        text = "slot average_gradient is larger than any gradients make it whose mean square is velocity"
        limits.append(Limit("average_gradient", "velocity", text, _square_above(1.0)))
    return limits


def _sum(ratio: float, steps: int) -> float:
    """Return the sum of a ratio's powers, one for each step; of all powers if the steps are not counted."""
    return (1 - (ratio**steps if steps else 0.0)) / (1 - ratio)


def _counted(state: OptimizerState) -> int:
    """Return the steps that the source counts; 0 if it does not count them, or if its counter has a warning."""
    count = next((o for o in state.origins if o.subject == "iterations"), None)
    is_told = count is not None and count.kind in (FILE, GRAPH, HINT) and count.certain
    return state.iterations if is_told else 0


def is_wide(state: OptimizerState) -> bool:
    """Return whether the slots' dtypes can hold squares of small gradients."""
    return {a.dtype for owners in state.slots.values() for a in owners.values()} <= {"float32", "float64"}


def _square_above(factor: float) -> Callable[[np.ndarray, np.ndarray], bool]:
    def is_broken(values: np.ndarray, squares: np.ndarray) -> bool:
        with np.errstate(all="ignore"):  # other checks report NaN and infinities
            return bool(np.any(np.square(values) > squares * (factor * SLACK) + LOST))

    return is_broken


def is_apart(state: OptimizerState, name: str) -> bool:
    """Return whether a variable may keep no bounds: Keras 3 squares gradients of a table's repeated row one by one."""
    generation = state.source.generation if state.source else None
    squares = traits(generation).squares_repeated_rows or repeated_rows.SQUARE in (
        state.hyperparameters.get(repeated_rows.REPEATED) or ()
    )
    return squares and not lazy_rows.is_dense(name)


def of_whole(state: OptimizerState, sizes: Mapping[str, Mapping[str, float]]) -> Iterator[Origin]:
    """Yield what contradicts the step counter, or shows that slots were lost.

    Args:
      sizes: variable -> slot -> the largest absolute value in it.
    """
    moved: dict[str, bool] = {}
    for largest in sizes.values():
        moved |= {slot: size != 0 or moved.get(slot, False) for slot, size in largest.items()}
    settings = state.hyperparameters
    count = next((o for o in state.origins if o.subject == "iterations"), None)
    counted = count is not None and count.kind in (FILE, GRAPH, HINT)
    steps, generation = state.iterations, state.source.generation if state.source else None
    from_zero = {slot: m for slot, m in moved.items() if slot in FROM_ZERO or slot in SQUARES}
    used = {slot: m for slot, m in from_zero.items() if settings.get(IDLE.get((state.algorithm, slot), ""), 1)}
    zero = [slot for slot, is_moved in used.items() if not is_moved]
    counts = _counts_each(state)
    reported = (zero if steps else list(used) if counts else []) if counted else []
    yield from _still(state, sizes, [slot for slot in used if slot not in reported])
    if count is None or not counted:
        return
    gathered = state.scalars.get(ACCUMULATED_STEPS)
    if (
        gathered is not None
        and traits(generation).accumulates_gradients
        and bool(gathered) != moved.get(ACCUMULATED.name, bool(gathered))
    ):
        are = "and gradients are gathered" if moved[ACCUMULATED.name] else "and no gradients are gathered"
        text = (
            f"iterations is {count.value}, {gathered} batches after a step, {are}: one of the two is from another run"
        )
        yield Origin("iterations", count.value, UNINTERPRETED, doubt=text, confirm=f"--set iterations={count.value}")
    if steps and zero:
        others = "and the others are not" if len(zero) < len(used) else "as before the first"
        text = f"slot {' and slot '.join(zero)}: all zero after {steps} steps, {others}; lost, or never restored"
        yield Origin(f"slot {zero[0]}", None, UNINTERPRETED, doubt=text, confirm=f"--set iterations={steps}")
    starts = [slot for slot in used if not _is_new(slot, sizes, generation, settings)]
    if not steps and starts and not settings.get("gradient_accumulation_steps") and counts:
        text = f"iterations is 0, and slot {' and slot '.join(starts)} is not as it is before the first step"
        yield Origin("iterations", 0, UNINTERPRETED, doubt=text, confirm="--set iterations=0")


def _counts_each(state: OptimizerState) -> bool:
    """Return whether the source's release counts each step of that algorithm."""
    source = state.source
    if source is None or source.generation is None:
        return True
    return facts.counted(state.algorithm).assumed(candidates(source.generation, source.versions)) == facts.ALWAYS


def _is_new(
    slot: str, sizes: Mapping[str, Mapping[str, float]], generation: str | None, settings: Mapping[str, Any]
) -> bool:
    """Return whether a slot may be as it is before the first step."""
    is_set = slot == "accumulator" and traits(generation).initial_accumulator
    start = settings.get("initial_accumulator_value") if is_set else 0.0
    if not isinstance(start, (int, float)) or slot not in (*FROM_ZERO, *STARTS):
        return True
    return all(abs(largest[slot] - start) <= 1e-6 * start for largest in sizes.values() if slot in largest)


def _still(state: OptimizerState, sizes: Mapping[str, Mapping[str, float]], used: Sequence[str]) -> Iterator[Origin]:
    """Yield slots that are all zero for a variable, while other variables or its other slots are not zero.

    Raises:
      HyperparameterError: the user set `zero_slots` to an unknown value.
    """
    override = next((o for o in state.origins if o.subject == STILL and o.kind == SET), None)
    if override is not None and override.value != AS_STORED:
        raise HyperparameterError(f"{STILL} is {override.value!r}; it takes {AS_STORED}, as the optimizer left them")
    if override is not None or not is_wide(state):
        return
    names_by_slots: dict[str, list[str]] = {}
    moved, copies = any(largest.get(slot) for largest in sizes.values() for slot in used), _copies(state)
    unmoved = RECURRENT if _takes_one_step(state) else None
    for name, largest in sizes.items():
        if name.rpartition("/")[2] == unmoved and not any(largest.get(slot) for slot in used):
            continue
        still = [slot for slot in copies if largest.get(slot) == 0 and largest.get(VARIABLE)]
        if moved and not 0 < max((largest.get(slot, 0.0) for slot in used), default=0.0) < VISIBLE:
            still += [slot for slot in used if largest.get(slot) == 0]
        if still:
            names_by_slots.setdefault(" and slot ".join(still), []).append(name)
    for slots, names in names_by_slots.items():
        text = f"{some(names, 4)}: only zeros in slot {slots}, and not so in others; lost, or no gradient came"
        confirm = confirming(STILL, AS_STORED)
        yield Origin(f"slot {slots}", names, UNINTERPRETED, doubt=text, confirm=confirm)


def _takes_one_step(state: OptimizerState) -> bool:
    source = state.source
    if source is None or source.model is None:
        return False
    return takes_one_step(source.model.config, source.generation)


def _copies(state: OptimizerState) -> list[str]:
    """Return the slots to which steps have copied earlier values of the variables."""
    period = (state.hyperparameters.get("lookahead") or {}).get("sync_period")
    steps = state.iterations or 0
    copies = ((AVERAGE.name, steps), (SLOW.name, period and steps >= period), (UNAVERAGED, steps))
    return [slot for slot, is_filled in copies if is_filled]


UNAVERAGED = "z"
"""Slot of ScheduleFreeAdamW: the weights of which the variables are averages."""


RECURRENT = "recurrent_kernel"
"""Last part of the name of a weight that has no gradient in the first step of a sequence."""
VARIABLE = ""
"""The variable's key among the arrays of a variable."""
STILL, AS_STORED = "zero_slots", "source"
"""An override that confirms slots that are zero only for some variables."""
VISIBLE = 1e-12
"""If a slot is less than this, squares of its gradients may vanish in another slot."""
IDLE = {("SGD", "m"): "momentum", ("RMSprop", "momentum"): "momentum"}
"""(algorithm, slot) -> option; at 0, it leaves the slot unchanged."""
FROM_ZERO = (
    *("m", "v", "vhat", "u", "average_gradient", "momentum", "accumulated_grad", "accumulated_delta_var"),
    *("gradient_norm_sum", "gradient_sum", "linear", "r", "c"),
)
"""Slots that every release starts at zero."""
SQUARES = ("velocity", "accumulator", "largest_gradient")
"""Slots that start at zero, or above."""
STARTS = ("velocity", "accumulator")
"""Slots whose start is known, except in tf.train: zero, or the value in a config."""
