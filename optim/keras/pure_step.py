"""One call of `apply` as a pure function: the arrays of all variables before it in, those after it out."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

from optim import recipe, slot_layout
from optim.algorithm import Algorithm
from optim.keras.backends import Backend
from optim.keras.few_bits import FewBits
from optim.keras.rule_groups import JointScalars, RuleGroup, rule_groups
from optim.keras.step_values import VARIABLE, Arrays, Gradients, Scalars, Tracked, dtype_of
from optim.options.clipping import clip
from optim.options.settings import Settings
from optim.rule import Rule
from optim.step.scalars import StepScalars


class PureStep:
    """What calls of an optimizer compute.

    Args:
      state: has the variables that it was built on. slots: its slots by name and index.
      rate: the learning rate of a group, given all arrays and the count that a schedule takes.
    """

    def __init__(
        self,
        xp: Backend,
        settings: Settings,
        algorithm: Algorithm,
        state: recipe.State,
        slots: Mapping[str, Mapping[int, Any]],
        rate: Callable[[RuleGroup, Arrays, Any], Any],
    ):
        self._xp, self._settings, self._algorithm = xp, settings, algorithm
        self._state, self._slots, self._rate = state, slots, rate
        self._groups = rule_groups(algorithm, settings, state.tracked)
        self._names: dict[int, tuple[Rule, list[str]]] = {}

    def after_call(self, now: Arrays, gradients: dict[int, Any]) -> Arrays:
        """All arrays after one call of `apply`."""
        xp, accumulation = self._xp, self._settings.accumulation
        wide_gradients = {i: xp.cast(g, self._state.tracked[i].wide) for i, g in gradients.items()}
        if not accumulation.is_used:
            return self._step(now, wide_gradients, {})
        now = {**now, slot_layout.ACCUMULATED_STEPS: now[slot_layout.ACCUMULATED_STEPS] + 1}
        for i, gradient in wide_gradients.items():
            total, mark = f"{slot_layout.ACCUMULATED_GRADIENT}.{i}", f"{slot_layout.GATHERED}.{i}"
            now |= {total: now[total] + gradient, mark: xp.ones_like(now[mark])}
        is_complete = now[slot_layout.ACCUMULATED_STEPS] >= accumulation.steps
        return xp.cond(
            is_complete, lambda: self._window_step(now, gradients), lambda: self._end_without_step(now, gradients)
        )

    def _window_step(self, now: Arrays, gradients: Mapping[int, Any]) -> Arrays:
        """The step of the mean of a window's gradients, of which the sums start again at zero."""
        xp, new = self._xp, dict(now)
        new[slot_layout.ACCUMULATED_STEPS] = xp.zeros_like(now[slot_layout.ACCUMULATED_STEPS])
        means, active = {}, {}
        for tracked in [t for t in self._state.tracked if f"{slot_layout.GATHERED}.{t.index}" in now]:
            i = tracked.index
            total, mark = f"{slot_layout.ACCUMULATED_GRADIENT}.{i}", f"{slot_layout.GATHERED}.{i}"
            is_active = i in gradients or now[mark] > 0
            if is_active is not True and xp.is_known(is_active):
                is_active = bool(is_active)
            new |= {total: xp.zeros_like(now[total]), mark: xp.zeros_like(now[mark])}
            if is_active is not False:
                means[i], active[i] = now[total] / self._settings.accumulation.steps, is_active
        return self._step(new, means, active)

    def _end_without_step(self, now: Arrays, gradients: Mapping[int, Any]) -> Arrays:
        """What a call does that only gathers gradients."""
        settings, new = self._settings, dict(now)
        if settings.accumulation.count_calls and settings.averages.option.use_ema:
            scalars = self._scalars_of_step(now)
            for tracked in self._state.tracked:
                if f"{slot_layout.AVERAGE}.{tracked.index}" in now:
                    key = self._target(now, tracked)
                    self._write(now, new, tracked, self._average(now, new, tracked, now[key], True, scalars))
        self._constrain(new, gradients)
        return new

    def _step(self, now: Arrays, gradients: dict[int, Any], active: Mapping[int, Any]) -> Arrays:
        """All arrays after one real step, in which gradients are in the dtype of updates."""
        xp, scale = self._xp, self._settings.loss_scale.loss_scale
        if scale is None:
            return self._finite_step(now, gradients, active)
        smaller = {i: g / scale for i, g in gradients.items()}
        is_finite = [xp.all(xp.isfinite(gradient)) for gradient in smaller.values()]
        return xp.cond(
            functools.reduce(xp.logical_and, is_finite),
            lambda: self._finite_step(now, smaller, active),
            lambda: dict(now),
        )

    def _finite_step(self, now: Arrays, gradients: dict[int, Any], active: Mapping[int, Any]) -> Arrays:
        settings, new = self._settings, dict(now)
        if settings.clipping.option.active:
            clipped = clip(Gradients(self._xp, list(gradients.values())), settings.clipping.option)
            gradients = dict(zip(gradients, clipped.arrays, strict=True))
        scalars = self._scalars_of_step(now)
        steps = self._xp.kernel_steps()
        iterations = now[slot_layout.ITERATIONS]
        few = FewBits(self._xp, settings.storage(), int(iterations) if self._xp.is_known(iterations) else iterations)
        for i, gradient in gradients.items():
            self._update(now, new, self._state.tracked[i], gradient, active.get(i, True), scalars, steps, few)
        if steps is not None:
            steps.run()
        self._constrain(new, gradients)
        new[slot_layout.ITERATIONS] = now[slot_layout.ITERATIONS] + 1
        return new | scalars.new_scalars(now)

    def _scalars_of_step(self, now: Arrays) -> JointScalars:
        stepped = [group for group in self._groups if len(group.tracked)]
        return JointScalars([(group, self._scalars_of_group(group, now)) for group in stepped])

    def _scalars_of_group(self, group: RuleGroup, now: Arrays) -> Scalars:
        xp, accumulation = self._xp, self._settings.accumulation
        iterations = now[slot_layout.ITERATIONS]
        is_known = xp.is_known(iterations)
        iterations = int(iterations) if is_known else iterations
        rate = self._rate(group, now, accumulation.count_of_step(iterations))
        with xp.float64():
            if is_known:
                values = {name: float(value) for name, value in group.scalars_of(now).items()}
            else:
                values = {name: xp.cast(value, "float64") for name, value in group.scalars_of(now).items()}
                rate = xp.cast(rate, "float64")
            decay = group.settings.rate.decay
            if decay:
                rate = rate / (1.0 + decay * (iterations if is_known else xp.cast(iterations, "float64")))
            tracked: Any = list(group.tracked)
            step_scalars = StepScalars(group.algorithm, group.settings, tracked, iterations, rate, values, xp)
            return Scalars(xp, step_scalars, tracked, is_known)

    def _target(self, now: Arrays, tracked: Tracked) -> str:
        """The key of what the rule updates: the float32 copy, or the variable."""
        master = f"{slot_layout.MASTER}.{tracked.index}"
        return master if master in now else f"{VARIABLE}.{tracked.index}"

    def _update(
        self,
        now: Arrays,
        new: Arrays,
        tracked: Tracked,
        gradient: Any,
        active: Any,
        scalars: JointScalars,
        steps: Any,
        few: FewBits,
    ) -> None:
        """Put a variable, its slots and its average as they are after the step into `new`.

        What is in `new` by dtopt's kernel has its values when `steps` are run.
        """
        xp, rule, i = self._xp, self._algorithm.rule_of(tracked), tracked.index
        assert rule is not None
        target = self._target(now, tracked)
        names = [name for name in self._slot_names(rule) if f"{name}.{i}" in now]
        stored = {name: now[f"{name}.{i}"] for name in names}
        old = now[target]
        is_few = few.applies_to(stored, target, old)
        rounds = few.rounds_variable(target, old)
        if rule.elementwise and names:
            like = self._slots[names[0]][i]
            gradient, old = (xp.placed(x, like, tracked.variable) for x in (gradient, old))
        coefficients, decay = scalars.of(tracked)

        def updated(old: Any, gradient: Any, before: Arrays) -> tuple[Any, Arrays]:
            value = xp.cast(old, tracked.wide)
            value = value if decay is None else value * decay
            slots = {name: xp.cast(array, tracked.wide) for name, array in before.items()}
            change, after = rule.update(xp, value, gradient, slots, coefficients)
            after = {name: xp.cast(after[name], dtype_of(before[name])) for name in before}
            return value + change if rounds else xp.cast(value + change, dtype_of(old)), after

        is_lazy = self._settings.lazy_rows.applies_to(tracked)  # type: ignore[arg-type]
        is_by_part = rule.elementwise and not is_lazy and active is True
        how = (lambda names: few.stored(now, names, tracked, old)) if is_few else None
        if is_by_part and steps is not None and steps.add(rule, old, gradient, stored, coefficients, decay, how):
            value, after, before = old, dict[str, Any](), stored
            if self._settings.averages.is_used or target != f"{VARIABLE}.{i}":
                steps.run()  # the new value is read below
        else:
            before = {name: few.read(now, name, tracked) for name in names} if is_few else stored
            update = xp.part_by_part if is_by_part and not is_few else xp.at_once
            value, after = update(updated, old, gradient, before)
            value = few.rounded(value, dtype_of(old), tracked) if rounds else value
        if is_lazy:
            is_named = self._is_named(gradient)
            value = xp.where(is_named, value, old)
            if rule.keeps_lazy_slots:
                after = {name: xp.where(is_named, after[name], before[name]) for name in after}
        for name, array in after.items():
            arrays = few.write(name, tracked, array, stored[name]) if is_few else {f"{name}.{i}": array}
            new |= {k: x if active is True else xp.where(active, x, now[k]) for k, x in arrays.items()}
        value = value if active is True else xp.where(active, value, now[target])
        if self._settings.averages.is_used:
            value = self._average(now, new, tracked, value, active, scalars)
        self._write(now, new, tracked, value)

    def _slot_names(self, rule: Rule) -> list[str]:
        """Return the names of the slots of a rule, which is asked once: for each variable that would take long."""
        if id(rule) not in self._names:
            self._names[id(rule)] = rule, [slot.name for slot in rule.slots]
        return self._names[id(rule)][1]

    def _is_named(self, gradient: Any) -> Any:
        """Whether each row of a gradient has a nonzero number."""
        xp = self._xp
        is_named = xp.reshape(gradient != 0, (gradient.shape[0], -1))
        return xp.reshape(xp.any(is_named, axis=1), (-1, *[1] * (len(gradient.shape) - 1)))

    def _average(
        self, now: Arrays, new: Arrays, tracked: Tracked, value: Any, active: Any, scalars: JointScalars
    ) -> Any:
        """Move the average of a variable towards `value`; return what the variable ends with."""
        xp, key = self._xp, f"{slot_layout.AVERAGE}.{tracked.index}"
        before, (momentum, rest) = now[key], scalars.momenta(tracked)
        mean = momentum * xp.cast(before, tracked.wide) + rest * xp.cast(value, tracked.wide)
        mean = xp.cast(mean, dtype_of(before))
        new[key] = mean if active is True else xp.where(active, mean, before)
        if scalars.overwrite is False:
            return value
        if scalars.overwrite is True and active is True:
            return mean
        return xp.where(xp.logical_and(scalars.overwrite, active), mean, value)

    def _write(self, now: Arrays, new: Arrays, tracked: Tracked, value: Any) -> None:
        target, key = self._target(now, tracked), f"{VARIABLE}.{tracked.index}"
        new[target] = value
        if target != key:
            new[key] = self._xp.cast(value, dtype_of(now[key]))

    def _constrain(self, new: Arrays, members: Mapping[int, Any]) -> None:
        for tracked in [self._state.tracked[i] for i in members]:
            if tracked.variable.constraint is not None:
                target = self._target(new, tracked)
                value = self._xp.convert_to_tensor(tracked.variable.constraint(new[target]))
                self._write(new, new, tracked, self._xp.cast(value, dtype_of(new[target])))
