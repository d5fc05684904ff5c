"""What the optimizers of Keras 3 do on JAX and PyTorch, by the rule and the options of an optimizer of `optim`.

A step is a pure function of arrays: those of all variables before it in, those after it out. Keras's variables hold
them in between, so that whatever Keras does with an optimizer (a stateless call in a compiled function, donated
buffers, meshes, files) it does with this one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

import numpy as np

from optim import schedules, slot_layout
from optim.errors import CheckpointError, HyperparameterError, MismatchError, UnknownVariableError, UnsupportedError
from optim.groups.algorithm import Composite
from optim.keras import listing
from optim.keras.backend_options import OTHER_NAMES, check, parts_of
from optim.keras.backend_rates import BackendRates
from optim.keras.backends import BACKENDS
from optim.keras.behaviour import Behaviour
from optim.keras.few_bits import coded_slot, has_codes
from optim.keras.pure_step import PureStep
from optim.keras.rule_groups import rule_groups
from optim.keras.step_values import VARIABLE, Tracked, distinct
from optim.keras_differences import KERAS_3
from optim.optimizers.groups import Groups
from optim.options.master_copies import LOW_PRECISION
from optim.options.settings import OPTIONS
from optim.rule import AS_VARIABLE, Slot
from optim.state.names import listed, plain_name
from optim.step.reports import MemoryReport, summary


class AnyBackend(BackendRates):
    """An optimizer of Keras 3 on JAX or PyTorch, with the rule and the options of `inner`.

    `making` puts it before Keras's `Optimizer`.
    """

    _keras: ModuleType
    has_slots_of_keras = True
    """Whether its state is in variables of Keras, and not in `inner`."""

    def __init__(self, optimizer: Any):
        backend = BACKENDS[self._keras.backend.backend()]()
        attributes = vars(self)
        if not isinstance(optimizer, Groups):  # which Keras has no class for
            attributes["_behaviour"] = behaviour = Behaviour(optimizer, self._keras, KERAS_3, backend.name, True)
            behaviour.warn(behaviour.unlike, 3)
        attributes["_xp"] = backend
        attributes["_state"], attributes["_settings"], attributes["_algorithm"] = parts_of(optimizer)
        settings, algorithm = attributes["_settings"], attributes["_algorithm"]
        check(settings, algorithm, optimizer, backend)
        attributes["_groups"] = rule_groups(algorithm, settings, attributes["_state"].tracked)
        attributes["_slots"], attributes["_by_id"], attributes["_exact_rates"] = {}, {}, {}
        rate = settings.rate.source
        self._keras.optimizers.Optimizer.__init__(self, learning_rate=rate, name=optimizer.name)
        for option in [name for name in vars(self) if name in OPTIONS]:
            del attributes[option]  # Keras's own, all unused
        attributes["inner"] = optimizer
        attributes["_scalars"] = {slot_layout.ITERATIONS: self._iterations}
        if isinstance(rate, float):
            attributes["_scalars"][self._main.rate_key] = self._learning_rate
            attributes["_exact_rates"][self._main.rate_key] = rate
        for group in self._other_groups:
            rate = group.settings.rate.source
            if isinstance(rate, float):
                self._add_scalar(group.rate_key, rate, backend.scalar_dtype)
                attributes["_exact_rates"][group.rate_key] = rate
        if settings.accumulation.is_used:
            self._add_scalar(slot_layout.ACCUMULATED_STEPS, 0, "int32")
        for group in attributes["_groups"]:
            for name, value in group.algorithm.scalars.items():
                self._add_scalar(group.key(name), value, backend.scalar_dtype)

    def _add_scalar(self, name: str, value: Any, dtype: str) -> None:
        initializer = self._keras.initializers.Constant(value)
        self._scalars[name] = self.add_variable((), initializer, dtype, name=name)

    def __repr__(self) -> str:
        counter = self._iterations.value
        steps = str(int(counter)) if self._xp.is_known(counter) else "?"
        return f"for_keras({summary(self.inner, steps, len(self._state.tracked))})"

    def __getattr__(self, name: str) -> Any:
        attributes = vars(self)
        if name in listing.ATTRIBUTES and attributes.get("_slots"):
            slot = next((slot for slot in listing.ATTRIBUTES[name] if slot in attributes["_slots"]), None)
            if slot is not None:
                return [attributes["_slots"][slot].get(tracked.index) for tracked in attributes["_state"].tracked]
        if name == "members" and "inner" in attributes:
            raise AttributeError(
                "members are fixed when the optimizer is made, as compiled steps hold them; set learning_rate, which"
                " moves the rates of all groups, or read those of `inner`"
            )
        if name in OPTIONS and "_settings" in attributes:
            return attributes["_settings"].get("loss_scale" if name == "loss_scale_factor" else name)
        if not name.startswith("_") and "inner" in attributes:
            return getattr(attributes["inner"], name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if "inner" in vars(self) and (name in OPTIONS or name in self.inner._hyper.values):
            if name not in OTHER_NAMES:
                raise UnsupportedError(
                    f"{name} is fixed when the optimizer is made, as compiled steps hold it; make another one"
                )
            if name == "loss_scale_factor":
                self._set_loss_scale(value)
                return
            name = "learning_rate"
        super().__setattr__(name, value)

    def _set_loss_scale(self, value: float | None) -> None:
        """LossScaleOptimizer of Keras sets None: it scales and unscales."""
        scale = self._settings.loss_scale.loss_scale
        if value is None and scale is not None:
            warnings.warn(
                f"Keras's LossScaleOptimizer scales the loss: loss_scale={scale!r} of {type(self.inner).__name__} is"
                " switched off; compile(..., auto_scale_loss=False) keeps it",
                UserWarning,
                stacklevel=4,
            )
        self._settings.change("loss_scale", value)

    # State.

    @property
    def iterations(self) -> Any:
        """How many steps were taken."""
        return self._iterations

    def build(self, variables: Sequence[Any], names: Sequence[str] | None = None) -> None:
        """Make the slots of model variables; those of variables known already are left as they are.

        Args:
          names: those in checkpoints; None takes the variables' own.
        """
        attributes, known, variables = vars(self), self._state.tracked, listed(variables)
        taken = {tracked.name for tracked in known}
        new = []
        for variable, name in zip(variables, names or map(plain_name, variables), strict=True):
            if id(variable) in self._by_id:
                continue
            tracked = Tracked(len(known), _unique(name, taken), variable)
            taken.add(tracked.name)
            known.append(tracked)
            self._by_id[id(variable)] = tracked
            new.append(tracked)
        attributes["_trainable_variables"] = [tracked.variable for tracked in known]
        attributes["_trainable_variables_indices"] = {key: tracked.index for key, tracked in self._by_id.items()}
        stepped = [t for t in new if not self._overwrite_variable_with_gradient(t.variable)]
        if isinstance(self._algorithm, Composite):
            self._algorithm.selection.check(tracked.names for tracked in stepped)
            self._algorithm.selection.add(stepped)  # type: ignore[arg-type]
        self._settings.multipliers.add(stepped)
        names_of_slots = list(dict.fromkeys(slot.name for slot in self._slots_wanted(self._algorithm.slots)))
        for group in listing.order(names_of_slots, [slot.name for slot in self._algorithm.slots]):
            for tracked in stepped:
                plan = {slot.name: slot for slot in self._slots_wanted(self._algorithm.rule_of(tracked).slots)}
                for name in group:
                    if name in plan:
                        self._add_slot(plan[name], tracked)
        attributes["built"] = True
        if "_read_before" in attributes:
            self._load(attributes.pop("_read_before"))

    def _slots_wanted(self, of_algorithm: Sequence[Slot]) -> list[Slot]:
        """Those of the algorithm and of the options, as the former are declared."""
        settings = self._settings
        slots = list(of_algorithm)
        if settings.averages.is_used:
            slots.append(Slot(slot_layout.AVERAGE, unit="variable", initial=AS_VARIABLE))
        if settings.masters.master_copies:
            slots.append(Slot(slot_layout.MASTER, unit="variable", initial=AS_VARIABLE))
        if settings.accumulation.is_used:
            slots.append(Slot(slot_layout.ACCUMULATED_GRADIENT, unit="gradient"))
            slots.append(Slot(slot_layout.GATHERED, unit="", like="scalar"))
        return slots

    def _add_slot(self, slot: Slot, tracked: Tracked) -> None:
        variable, xp, name = tracked.variable, self._xp, slot.name
        shape = tuple(variable.shape)
        dtype = tracked.wide if self._settings.masters.master_copies else variable.dtype
        dims: tuple[int, ...] | None = tuple(range(len(shape)))
        if name == slot_layout.MASTER and variable.dtype not in LOW_PRECISION:
            return
        if name == slot_layout.ACCUMULATED_GRADIENT:
            dtype = tracked.wide
        elif name == slot_layout.GATHERED:
            dims, dtype = (), "int32"
        elif name in {rule_slot.name for rule_slot in self._algorithm.slots}:
            dims = self._algorithm.rule_of(tracked).slot_dims(slot, shape, tracked.names)
        if dims is None:
            return
        stored = None
        if name in {rule_slot.name for rule_slot in self._algorithm.slots}:
            owner, size = str(tracked), math.prod(shape)
            stored = self._settings.slot_dtypes.name_of(slot, str(variable.dtype), size, owner)
        dtype = stored or dtype
        layout = xp.slot_layout(self._settings.placement.slot_placement, variable, name)
        if dims != tuple(range(len(shape))):
            layout = xp.only_dims(xp.slot_layout("like_variable", variable, name), dims)
        fill = 0.0 if slot.initial == AS_VARIABLE else float(slot.initial)
        if stored is not None and has_codes(stored):
            fill, blocks, scale = coded_slot(slot, stored, shape)
            of_blocks = xp.only_dims(xp.slot_layout("like_variable", variable, name), ())
            self._new_slot(slot_layout.scale_of(name), tracked, (blocks,), scale, "float32", of_blocks)
        slot_variable = self._new_slot(name, tracked, tuple(shape[d] for d in dims), fill, dtype, layout)
        if slot.initial == AS_VARIABLE:
            slot_variable.assign(xp.copied(xp.cast(variable.value, dtype)))

    def _new_slot(self, name: str, tracked: Tracked, shape: Sequence[int], fill: float, dtype: str, layout: Any) -> Any:
        called = f"{tracked.name.replace('/', '_')}_{listing.NAMES.get(name, name)}"
        initializer = self._keras.initializers.Constant(fill)
        slot_variable = self.add_variable(tuple(shape), initializer, dtype, layout=layout, name=called)
        self._slots.setdefault(name, {})[tracked.index] = slot_variable
        return slot_variable

    @property
    def slot_names(self) -> list[str]:
        """Names of the slots that exist; before `build`, those that the algorithm will have."""
        return list(self._slots) or list(dict.fromkeys(slot.name for slot in self._algorithm.slots))

    def get_slot(self, variable: Any, name: str) -> Any:
        """The slot `name` of a model variable. Raises UnknownVariableError (a KeyError)."""
        tracked = self._by_id.get(id(variable))
        slot = None if tracked is None else self._slots.get(name, {}).get(tracked.index)
        if slot is None:
            raise UnknownVariableError(
                f"variable {plain_name(variable)!r} has no slot {name!r} here; the slots are"
                f" {', '.join(self.slot_names) or 'none'}, of the variables that the optimizer was built on"
            )
        return slot

    def memory_report(self) -> MemoryReport:
        """Bytes on each device, of the variables that the optimizer was built on and of their slots."""
        variables: dict[str, int] = {}
        slots: dict[str, dict[str, int]] = {}
        whole: dict[str, dict[str, int]] = {}
        for tracked in self._state.tracked:
            _add(variables, self._xp.bytes_by_device(tracked.variable))
        for name, of_variables in self._slots.items():
            for variable in of_variables.values():
                mine = self._xp.bytes_by_device(variable)
                full = int(np.prod(variable.shape, dtype=np.int64)) * variable.value.dtype.itemsize
                _add(slots.setdefault(name, {}), mine)
                _add(whole.setdefault(name, {}), dict.fromkeys(mine, full))
        return MemoryReport(variables, slots, whole)

    def _variables_by_key(self) -> dict[str, Any]:
        slots = {f"{name}.{i}": v for name, of in self._slots.items() for i, v in of.items()}
        return {**self._scalars, **slots}

    # Steps.

    def scale_loss(self, loss: Any) -> Any:
        scale = self._settings.loss_scale.loss_scale
        return loss if scale is None else loss * scale

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any = None) -> None:
        """Refused: a step is one of all variables. Raises UnsupportedError."""
        raise UnsupportedError("update_step of a single variable is for TensorFlow; call apply")

    def apply(self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        """Take one step: without `trainable_variables`, gradients are in build order."""
        grads = list(grads)
        if not grads:
            return
        variables = list(self._trainable_variables if trainable_variables is None else trainable_variables)
        if trainable_variables is not None and not self.built:
            self.build(variables)
        if len(grads) != len(variables):
            raise HyperparameterError(
                f"{len(grads)} gradients for the {len(variables)} variables that the optimizer was built on; pass"
                " trainable_variables"
            )
        self._check_variables_are_known(variables)
        if "_behaviour" in vars(self):
            self._behaviour.warn(self._behaviour.look_at(grads), 3)
        grads, variables = self._filter_empty_gradients(grads, variables)
        grads, variables = self._overwrite_variables_directly_with_gradients(grads, variables)
        with self._xp.without_gradients():
            mine = [self._by_id[id(variable)] for variable in variables]
            gradients = {tracked.index: gradient for tracked, gradient in zip(mine, grads, strict=True)}
            self._check_shapes(gradients)
            keys = self._variables_by_key()
            keys |= {f"{VARIABLE}.{t.index}": t.variable for t in self._state.tracked}
            before = {key: variable.value for key, variable in keys.items()}
            changed = {k: v for k, v in self._pure_step().after_call(before, gradients).items() if v is not before[k]}
            for key, value in distinct(self._xp, changed).items():
                keys[key].assign(value)

    def _check_shapes(self, gradients: Mapping[int, Any]) -> None:
        """Raises MismatchError, before anything changes."""
        for tracked in (self._state.tracked[i] for i in gradients):
            shape, gradient_shape = tuple(tracked.variable.shape), tuple(gradients[tracked.index].shape)
            if gradient_shape != shape:
                raise MismatchError(f"the gradient of {tracked} has shape {gradient_shape}, the variable {shape}")

    def _pure_step(self) -> PureStep:
        return PureStep(self._xp, self._settings, self._algorithm, self._state, self._slots, self._rate)

    def finalize_variable_values(self, var_list: Sequence[Any]) -> None:
        """At the end of `fit`: model variables become their averages, once there are any."""
        averages = self._settings.averages
        if not averages.is_used or self._iterations._value is None:  # after a failed first step of `fit` on JAX
            return
        if int(self._iterations) < averages.first_step:
            return
        with self._xp.without_gradients():
            for variable, tracked in ((v, self._by_id.get(id(v))) for v in var_list):
                average = None if tracked is None else self._slots[slot_layout.AVERAGE].get(tracked.index)
                if tracked is None or average is None:
                    continue
                variable.assign(self._xp.copied(average.value))
                master = self._slots.get(slot_layout.MASTER, {}).get(tracked.index)
                if master is not None:
                    master.assign(self._xp.copied(average.value))

    def exclude_from_weight_decay(self, var_list: Any = None, var_names: Any = None) -> None:
        """Leave out variables, and those whose names one of these regular expressions matches."""
        self._settings.weight_decay.exclude_from_weight_decay(var_list, var_names)

    def refresh_master_copies(self, var_list: Sequence[Any] | None = None) -> None:
        """Take the copies of `master_copies` from variables (None: all) that were assigned to from outside."""
        masters = self._slots.get(slot_layout.MASTER, {})
        chosen = self._trainable_variables if var_list is None else var_list
        for tracked in (self._by_id[id(variable)] for variable in chosen):
            if tracked.index in masters:
                masters[tracked.index].assign(self._xp.cast(tracked.variable.value, tracked.wide))

    def mark_what_is_there(self) -> None:
        """Make marks of sums of gradients that were read without marks: what is not zero was gathered."""
        for index, total in self._slots.get(slot_layout.ACCUMULATED_GRADIENT, {}).items():
            is_gathered = int(self._scalars[slot_layout.ACCUMULATED_STEPS]) and bool(self._xp.any(total.value != 0))
            self._slots[slot_layout.GATHERED][index].assign(int(is_gathered))

    # Saving.

    def inner_config(self) -> dict[str, Any]:
        """What `get_config()` of `inner` returns, with the values that are in force here."""
        config, rate = self.inner.get_config(), self._learning_rate
        if "groups" in config:
            rates = self._constant_rates
            for (_, entry), group in zip(config["groups"], self._groups, strict=True):
                if group.rate_key in rates:
                    entry["config"]["learning_rate"] = rates[group.rate_key]
            return {**config, "loss_scale": self._settings.loss_scale.loss_scale}
        if slot_layout.LEARNING_RATE in self._scalars:
            config["learning_rate"] = self._constant_rates[slot_layout.LEARNING_RATE]
        elif schedules.is_schedule(rate):
            config["learning_rate"] = schedules.to_config(rate)
        config["weight_decay_exclude"] = self._settings.weight_decay.weight_decay_exclude
        config["loss_scale"] = self._settings.loss_scale.loss_scale
        return config

    def save_own_variables(self, store: Any) -> None:
        """Write the state into a mapping name -> array, slots as `<slot>.<position of the variable>`."""
        rates = self._constant_rates
        for key, variable in self._variables_by_key().items():
            if key in rates:
                store[key] = np.float64(rates[key])
            else:
                store[key] = self._keras.ops.convert_to_numpy(variable.value)

    def load_own_variables(self, store: Any) -> None:
        """Read what `save_own_variables` wrote, on any backend; before `build`, slots wait for it.

        Raises:
          CheckpointError: other slots, or other shapes. Then nothing was assigned.
        """
        values = {key: np.asarray(store[key]) for key in store.keys()}  # noqa: SIM118  a group of h5py
        if not self.built and any("." in key for key in values):
            vars(self)["_read_before"] = values
            values = {key: value for key, value in values.items() if "." not in key}
        self._load(values)

    def _load(self, values: Mapping[str, Any]) -> None:
        mine = self._variables_by_key()
        if not any("." in key for key in values):
            mine = {key: variable for key, variable in mine.items() if "." not in key}
        odd = {key for key in set(values) ^ set(mine) if not key.endswith(slot_layout.LEARNING_RATE)}
        odd |= {k for k, v in values.items() if k in mine and v.shape != tuple(mine[k].shape)}
        if odd:
            raise CheckpointError(
                f"the file's state does not fit the optimizer ({type(self.inner).__name__}): {sorted(odd)[:5]} are"
                " missing, extra or misshapen; compile the model with the optimizer that it was saved with"
            )
        for key, variable in mine.items():
            if key in values:
                variable.assign(values[key])
        for key in self._constant_rates:
            if key in values:
                vars(self)["_exact_rates"][key] = float(values[key])


def _unique(name: str, taken: set[str]) -> str:
    candidate, count = name, 0
    while candidate in taken:
        count += 1
        candidate = f"{name}_{count}"
    return candidate


def _add(total: dict[str, int], more: Mapping[str, int]) -> None:
    for device, size in more.items():
        total[device] = total.get(device, 0) + size
