"""Choose and explain the executor of an optimizer's steps, and store its data from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorflow.experimental import dtensor

from optim import slot_layout
from optim.algorithm import Algorithm
from optim.errors import UnsupportedError
from optim.executors import kernels, local, native, one_op, plan, rows
from optim.layouts import placement, program_order
from optim.native import direct, gpu, library
from optim.options import master_copies
from optim.options.settings import Settings
from optim.rule import Rule
from optim.state.state import State
from optim.state.tracked import Tracked
from optim.step.reports import ExecutorReport


class Execution:
    """The data that the executors of one optimizer store; created again when variables, slots or options change."""

    def __init__(self, algorithm: Algorithm, state: State, settings: Settings):
        self._algorithm = algorithm
        self._state = state
        self._settings = settings
        self._plan: local.Plan | None = None
        self._report: tuple[Any, ExecutorReport] | None = None
        self.has_kernel = False
        """Whether there was a kernel at the last `report`."""
        self._by_row: dict[int, bool] = {}
        """By index of the variable: whether eager steps take rows of its gradient, as of the last `report`."""

    def _rule_of(self, item: Tracked) -> Rule | None:
        return self._algorithm.updating_rule_of(item)

    def forget(self) -> None:
        """Drop the stored data, because options have changed."""
        self._plan = self._report = None

    def plan(self) -> local.Plan:
        """Return the local executor's handles, as of the last `report`."""
        if self._plan is None:
            tracked = list(self._state.tracked)
            self._plan = local.Plan([*map(self._rule_of, tracked)], tracked, self._state.slots)
        return self._plan

    def report(self) -> ExecutorReport:
        """Return which executor eager steps use, why, and what updates each variable.

        Raises UnsupportedError: `executor="local"` is impossible here.
        """
        status = library.status()
        self.has_kernel = status.available
        key = (len(self._state.tracked), len(self._state.slots), status)
        if self._report is None or self._report[0] != key:
            self._plan, self._by_row = None, {}  # for other variables, for another kernel, or without one
            self._report = (key, self._new_report())
        return self._report[1]

    def _new_report(self) -> ExecutorReport:
        reason = self._why_portable()
        options = self._settings.execution
        if options.executor == "local" and reason:
            raise UnsupportedError(f'executor="local" is impossible here: {reason}; use executor="auto"')
        if options.jit_compile and reason:
            raise UnsupportedError(f"jit_compile=True needs the local executor, which is impossible here: {reason}")
        names = {item.name: self._kernel_name(item, bool(reason)) for item in self._state.tracked}
        why = reason or "every shard can be updated in place"
        executor, why_not = "portable" if reason else "local", self._why_not_native(bool(reason))
        dense = self._why_dense_rows()
        return ExecutorReport(executor, why, names, why_not, dense if self._squares else "", dense)

    @property
    def _squares(self) -> bool:
        """Whether several gradients of a row in a batch are squared one by one."""
        return self._settings.repeated_rows.squares

    def _why_dense_rows(self) -> str:
        """Return the first reason why a function makes gradients of rows dense; empty if it does not."""
        return next(filter(None, (self._why_dense_rows_of(item) for item in self._state.tracked)), "")

    def _why_dense_rows_of(self, item: Tracked) -> str:
        rule, settings, slots = self._rule_of(item), self._settings, self._state.slots
        if settings.execution.executor == "portable":
            return 'executor="portable" was asked for'
        if rule is None or not rule.elementwise:
            return f"{self._algorithm.owner_of(rule)} is not updated row by row"
        if slots.has_codes(item):
            return f"slots of {item} are codes, of which a block has one scale"
        if why := native.why_not(rule, item, slots, self._squares):
            return why
        if native.on_gpu(item):
            return self._why_dense_on_gpu(item)
        if item.layout is None:
            return ""
        if not rows.are_possible(item.layout):
            return f"a dim of {item} but its first two is divided"
        if why := plan.why_not_in_shards(rule, item, slots):
            return why
        if not one_op.is_divided_well(rule, item, slots):
            return "TensorFlow runs no op of dtopt's in functions on meshes"
        is_alike = self._has_sum_as_stepped(item)
        return (
            ""
            if is_alike
            else f"the sum of gradients of {item} has another placement than the part that a step updates"
        )

    def _why_dense_on_gpu(self, item: Tracked) -> str:
        """Explain why all rows of a variable on a GPU are updated, whichever have a gradient; empty if only these
        are."""
        rule, settings, slots = self._rule_of(item), self._settings, self._state.slots
        assert rule is not None
        program = native.program_of(rule, item, slots)
        if program is None or not native.adds_up_on(item):
            return gpu.why_no_squares() or f"no kernel adds up rows on a mesh, where {item} is"
        if slots.packing(item, program.slots) is not None:
            return f"a launch updates all of {item}, which has state in few bits"
        if settings.accumulation.is_used:
            return "sums over several calls are kept whole on a GPU"
        if settings.averages.is_used:
            return f"the average of {item} moves in all rows"
        if settings.lazy_rows.applies_to(item):
            return "" if rule.keeps_lazy_slots else f"slots of {item} move in all rows"
        if settings.weight_decay.amount(item):
            return f"weight decay moves all rows of {item}"
        return (
            ""
            if program.is_identity_at_zero
            else f"{self._algorithm.owner_of(rule)} moves rows of {item} without a gradient"
        )

    def _has_sum_as_stepped(self, item: Tracked) -> bool:
        """Whether the sum of gradients, if there is one, has on each device the rows that it updates."""
        total = self._state.slots.find(slot_layout.ACCUMULATED_GRADIENT, item)
        rule, slots = self._rule_of(item), self._state.slots
        return total is None or placement.layout_of(total) == plan.step_layout(rule, item, slots)

    def _kernel_name(self, item: Tracked, is_portable: bool) -> str:
        rule = self._rule_of(item)
        if rule is None:
            return "update_step"
        if not self._why_no_kernel(item, is_portable):
            return "native"
        if is_portable:
            return "ops"
        if self._settings.execution.jit_compile:
            return "xla"
        dtype = master_copies.target(self._state.slots, item).dtype
        return "fused" if kernels.kernel_for(rule, dtype) else "ops"

    def _why_not_native(self, is_portable: bool) -> str:
        """Return the first reason why dtopt's own kernel does not update a variable; empty if it updates all."""
        return next(filter(None, (self._why_no_kernel(item, is_portable) for item in self._state.tracked)), "")

    def _why_no_kernel(self, item: Tracked, is_portable: bool) -> str:
        """Explain why dtopt's own kernel does not update a variable in an eager step; empty if it does."""
        rule, executor = self._rule_of(item), self._settings.execution.executor
        if is_portable and (rule is None or item.mesh is not None or executor == "portable"):
            return "the steps are portable"
        return native.why_not(rule, item, self._state.slots)

    def _why_portable(self) -> str:
        settings = self._settings
        if settings.execution.executor == "portable":
            return 'executor="portable" was asked for'
        if self._algorithm.own_step is not None:
            return f"{self._algorithm.owner} has its own update_step"
        whole = next((rule for rule in self._algorithm.updating_rules if not rule.elementwise), None)
        if whole is not None:
            return f"the rule of {self._algorithm.owner_of(whole)} looks at whole tensors"
        for item in self._state.tracked:
            if why := self._why_not_in_shards(item):
                return why
        if (settings.clipping.has_norms or settings.loss_scale.is_used) and dtensor.num_clients() > 1:
            return "norms of gradients, or whether they are finite, span several clients"
        lazy = (item for item in self._state.tracked if settings.lazy_rows.applies_to(item))
        other = next((item for item in lazy if not self.keeps_rows(item)), None)
        return "" if other is None else f"lazy_rows names variable {other}, which dtopt's kernel does not update"

    def keeps_rows(self, item: Tracked) -> bool:
        """Whether the local executor can leave single rows of a variable unchanged."""
        rule = self._rule_of(item)
        why_not = native.why_not(rule, item, self._state.slots, self._squares)
        if native.on_gpu(item):
            return not why_not and not self._why_dense_on_gpu(item)
        return direct.available() and not why_not and self.plan().is_by_rows(item)

    def takes_rows(self, item: Tracked, is_eager: bool) -> bool:
        """Whether the gradient of a variable may be a `RowGradient`: dtopt's own kernel updates it."""
        if not is_eager:
            return self._takes_rows(item, False)
        self.report()
        if item.index not in self._by_row:
            self._by_row[item.index] = self._takes_rows(item, True)
        return self._by_row[item.index]

    def _takes_rows(self, item: Tracked, is_eager: bool) -> bool:
        rule, state, executor = self._rule_of(item), self._state, self._settings.execution.executor
        if rule is None or executor == "portable" or not rows.are_possible(item.layout) or state.slots.has_codes(item):
            return False
        if native.on_gpu(item) and not (
            rule.elementwise and (self.keeps_rows(item) or self._squares_all_rows(rule, item))
        ):
            return False
        if not is_eager or self.report().executor == "portable":
            takes = one_op.takes_rows(rule, item, state.slots, self._squares)
            return takes and (is_eager or self._has_sum_as_stepped(item))
        if direct.available():
            return native.on_gpu(item) or self.keeps_rows(item)
        return all(one_op.takes_rows(self._rule_of(t), t, state.slots, self._squares) for t in state.tracked)

    def _squares_all_rows(self, rule: Rule, item: Tracked) -> bool:
        """Whether a GPU gets all rows of a gradient with the sums of their squares, because all of them move."""
        if not self._squares or self._settings.lazy_rows.applies_to(item) or not native.adds_up_on(item):
            return False
        return not native.why_not(rule, item, self._state.slots, is_sum=True)

    def _why_not_in_shards(self, item: Tracked) -> str:
        """Explain why a variable cannot be updated shard by shard; empty if it can."""
        rule, slots = self._rule_of(item), self._state.slots
        assert rule is not None
        if why := plan.why_not_in_shards(rule, item, slots):
            return why
        if slots.packing(item, [slot.name for slot in rule.slots]) is not None and (
            why := native.why_not(rule, item, slots)
        ):
            return f"only dtopt's kernel updates state in few bits in place: {why}"
        is_further = plan.step_layout(rule, item, slots) != item.layout
        has_copy = slots.find(slot_layout.MASTER, item) is not None
        if is_further and has_copy and (why := native.why_not(rule, item, slots)):
            return f"only dtopt's kernel updates parts of master copies: {why}"
        if self._settings.execution.jit_compile and is_further:
            return f"slots of {item} are sharded further (slot_placement), and jit_compile compiles whole shards"
        return ""

    def check_traceable(self, tracked: Sequence[Tracked]) -> None:
        """Refuse, while tracing, steps that TensorFlow would run incorrectly."""
        options, state = self._settings.execution, self._state
        if options.executor == "local":
            raise UnsupportedError(
                'executor="local" steps outside of tf.function: compute gradients in the function, return them, and'
                " call apply_gradients on them eagerly"
            )
        meshes = {t.mesh for t in tracked}
        if len(meshes) > 1:
            raise UnsupportedError(
                "one tf.function cannot update variables of several meshes, or of a mesh and of no mesh (TensorFlow"
                " would run an assignment to a plain variable once per device); call apply_gradients eagerly"
            )
        if meshes != {None}:
            program_order.warn_if_not_kept()
        matrices = {slot.name for slot in self._algorithm.slots if isinstance(slot.like, int)}
        for slot, index, variable in state.slots.items():
            if slot in matrices:
                continue
            layout, variable_layout = state.tracked.at(index).layout, placement.layout_of(variable)
            if layout is not None and variable_layout is not None and not placement.is_finer(variable_layout, layout):
                raise UnsupportedError(
                    f"slot {slot!r} of {state.tracked.at(index)} is sharded across its variable's layout; a read"
                    " of the variable after the step in the same tf.function would give its old value (TensorFlow"
                    " 2.21); call apply_gradients eagerly"
                )
        if options.jit_compile and meshes != {None}:
            raise UnsupportedError(
                "jit_compile=True has no effect inside a tf.function over DTensors, which TensorFlow never compiles;"
                " call apply_gradients eagerly, or leave jit_compile out"
            )
