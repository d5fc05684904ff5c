"""JAX and PyTorch as the `xp` of rules, and what else of them a step needs.

Names and signatures are those of `optim.arrays` and of NumPy. Whatever else a rule calls is looked up in the framework,
then in `keras.ops`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

import numpy as np

from optim.arrays import ELEMENTWISE, allowed
from optim.errors import HyperparameterError, MismatchError, UnsupportedError
from optim.layouts import sharding
from optim.layouts.policies import ZERO1, Placement
from optim.native import maths
from optim.rule import Rule

PART = 1 << 17
"""How many elements PyTorch updates at once on a CPU."""
Update = Callable[[Any, Any, dict[str, Any]], tuple[Any, dict[str, Any]]]
Layout = Any
"""Where the parts of an array are; None for an array that is on one device."""


class Backend:
    """The array namespace of one framework."""

    name: str
    _modules: Sequence[str]
    _spelled: Mapping[str, str]
    """Functions that have another name in the framework."""
    unrolls = False
    """Whether loops of a known length are unrolled."""

    def __init__(self) -> None:
        self._homes = [import_module(module) for module in (*self._modules, "keras.ops")]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        for home in self._homes:
            function = getattr(home, self._spelled.get(name, name), None)
            if function is not None:
                setattr(self, name, function)  # asked for once
                return function
        raise HyperparameterError(
            f"a rule calls xp.{name}, which Keras on {self.name} does not have; the functions of all backends are"
            f" {allowed()}"
        )

    def cast(self, x: Any, dtype: Any) -> Any:
        """An array, or a Python number as a 0-d array, in a dtype of this name."""
        raise NotImplementedError

    def is_known(self, value: Any) -> bool:
        """Whether a value is known now, and not only when a compiled function runs."""
        return True

    def cond(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        """What one of two functions returns; both return arrays of the same shapes."""
        return yes() if bool(condition) else no()

    def float64(self) -> AbstractContextManager[Any]:
        """Let scalars be float64."""
        return nullcontext()

    def without_gradients(self) -> AbstractContextManager[Any]:
        return nullcontext()

    @property
    def scalar_dtype(self) -> str:
        """The dtype of variables that are one number."""
        return "float64"

    def copied(self, x: Any) -> Any:
        raise NotImplementedError

    def bits(self, x: Any) -> Any:
        """Return the int32 array with the bits of a float32 array."""
        raise NotImplementedError

    def floats(self, bits: Any) -> Any:
        """Return the float32 array with the bits of an int32 array."""
        raise NotImplementedError

    def counting(self, size: int, like: Any) -> Any:
        """Return 0, 1, ..., size − 1 in int32, modulo 2³², where the array `like` is."""
        raise NotImplementedError

    def like(self, numbers: np.ndarray, array: Any) -> Any:
        """Return a numpy array where another array is."""
        raise NotImplementedError

    def at_once(self, update: Update, value: Any, gradient: Any, slots: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return update(value, gradient, slots)

    def part_by_part(
        self, update: Update, value: Any, gradient: Any, slots: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """`update(value, gradient, slots)`, which treats each element for itself."""
        return update(value, gradient, slots)

    def kernel_steps(self) -> Any:
        """Return what gathers the updates of a step that dtopt's kernel makes in place; None without a kernel."""
        return None

    def slot_layout(self, policy: Placement, variable: Any, slot: str) -> Layout:
        """Where a slot that is shaped like `variable` is. Raises UnsupportedError, MismatchError."""
        return None

    def only_dims(self, layout: Layout, dims: Sequence[int]) -> Layout:
        """The layout of what is left of an array when it keeps these dims only."""
        return None

    def placed(self, x: Any, like: Any, instead_of: Any) -> Any:
        """An array in the layout of the variable `like`, if that is another one than that of `instead_of`."""
        return x

    def check_placement(self, policy: Placement) -> None:
        """Raises UnsupportedError: slots cannot be placed so."""
        if policy != "like_variable":
            raise UnsupportedError(
                f"slot_placement={policy!r} has no effect: on {self.name} Keras places no variables; leave it out"
            )

    def bytes_by_device(self, variable: Any) -> dict[str, int]:
        raise NotImplementedError


class Jax(Backend):
    """`jax.numpy`. Scalars are formed in float64 also where JAX has it switched off: 1 − βᵗ needs it."""

    name = "jax"
    _modules = ("jax.numpy", "jax.lax")
    _spelled: Mapping[str, str] = {
        "reduce_sum": "sum",
        "reduce_mean": "mean",
        "reduce_max": "max",
        "concat": "concatenate",
        "gather": "take",
    }

    def __init__(self) -> None:
        super().__init__()
        self._jax = import_module("jax")

    def cast(self, x: Any, dtype: Any) -> Any:
        return self.asarray(x, dtype)

    def is_known(self, value: Any) -> bool:
        return not isinstance(value, self._jax.core.Tracer)

    def cond(self, condition: Any, yes: Callable[[], Any], no: Callable[[], Any]) -> Any:
        return super().cond(condition, yes, no) if self.is_known(condition) else self._jax.lax.cond(condition, yes, no)

    def qr(self, matrix: Any) -> tuple[Any, Any]:
        factors: tuple[Any, Any] = self.linalg.qr(matrix)
        return factors

    def while_loop(self, condition: Any, body: Any, values: Sequence[Any]) -> Any:
        return self._jax.lax.while_loop(lambda now: condition(*now), lambda now: body(*now), tuple(values))

    def constant(self, value: Any, dtype: Any) -> Any:
        return self.asarray(value, dtype)

    def float64(self) -> AbstractContextManager[Any]:
        home = self._jax if hasattr(self._jax, "enable_x64") else import_module("jax.experimental")
        context: AbstractContextManager[Any] = home.enable_x64(True)
        return context

    @property
    def scalar_dtype(self) -> str:
        return "float64" if self._jax.config.jax_enable_x64 else "float32"

    def copied(self, x: Any) -> Any:
        return self.array(x, copy=True)  # a buffer of its own, as a compiled step may be given both

    def bits(self, x: Any) -> Any:
        return self._jax.lax.bitcast_convert_type(x, np.int32)

    def floats(self, bits: Any) -> Any:
        return self._jax.lax.bitcast_convert_type(bits, np.float32)

    def counting(self, size: int, like: Any) -> Any:
        return self.arange(size, dtype="int32")

    def like(self, numbers: np.ndarray, array: Any) -> Any:
        return self.asarray(numbers)

    # On a mesh of `keras.distribution`.

    def slot_layout(self, policy: Placement, variable: Any, slot: str) -> Layout:
        sharding_ = _sharding_of(variable)
        if sharding_ is None or policy == "like_variable":
            return sharding_
        if policy == ZERO1:
            return self._zero1(sharding_, variable.shape)
        assert callable(policy)
        chosen = policy(variable, slot)
        chosen = getattr(chosen, "backend_layout", chosen)
        if not isinstance(chosen, self._jax.sharding.NamedSharding):
            raise MismatchError(
                f"slot_placement for slot {slot!r} of variable {variable.path!r} must return a"
                f" keras.distribution.TensorLayout or a jax.sharding.NamedSharding, got {chosen!r}"
            )
        return chosen

    def only_dims(self, layout: Layout, dims: Sequence[int]) -> Layout:
        if layout is None:
            return None
        specs = _padded(layout.spec, max(dims, default=-1) + 1)
        return self._layout(layout, sharding.only_dims(specs, dims, None))

    def _zero1(self, variable_layout: Layout, shape: Sequence[int]) -> Layout:
        """See `sharding.zero1_axes`; JAX divides a dim over several axes, too."""
        used_axes = [
            spec if isinstance(spec, tuple) else () if spec is None else (spec,)
            for spec in _padded(variable_layout.spec, len(shape))
        ]
        dims = sharding.zero1_axes(used_axes, variable_layout.mesh.shape, list(shape))
        return self._layout(variable_layout, [dim if len(dim) > 1 else dim[0] if dim else None for dim in dims])

    def _layout(self, like: Layout, specs: Sequence[Any]) -> Layout:
        return self._jax.sharding.NamedSharding(like.mesh, self._jax.sharding.PartitionSpec(*specs))

    def placed(self, x: Any, like: Any, instead_of: Any) -> Any:
        layout, current = _sharding_of(like), _sharding_of(instead_of)
        if layout is None or len(like.shape) != len(x.shape) or layout == current:
            return x
        return self._jax.lax.with_sharding_constraint(x, layout)

    def check_placement(self, policy: Placement) -> None:
        if policy != "like_variable" and import_module("keras").distribution.distribution() is None:
            raise UnsupportedError(
                f"slot_placement={policy!r} has no effect without a mesh; call keras.distribution.set_distribution(...)"
                " before the optimizer is made"
            )

    def bytes_by_device(self, variable: Any) -> dict[str, int]:
        total: dict[str, int] = {}
        for shard in variable.value.addressable_shards:
            device = f"{shard.device.platform.upper()}:{shard.device.id}"
            total[device] = total.get(device, 0) + shard.data.nbytes
        return total


def _sharding_of(variable: Any) -> Any:
    """The `NamedSharding` of a variable of Keras, None without a distribution."""
    layout = getattr(variable, "_layout", None)
    return getattr(layout, "backend_layout", layout)


def _padded(spec: Any, rank: int) -> list[Any]:
    return [*spec, *[None] * (rank - len(spec))]


class Torch(Backend):
    """`torch`, whose steps are eager: scalars are Python floats."""

    name = "torch"
    _modules = ("torch",)
    _spelled: Mapping[str, str] = {"equal": "eq", "not_equal": "ne", "concat": "cat", "power": "pow"}

    def __init__(self) -> None:
        super().__init__()
        self._torch = import_module("torch")

    def cast(self, x: Any, dtype: Any) -> Any:
        dtype = getattr(self._torch, str(dtype).removeprefix("torch."))
        if isinstance(x, self._torch.Tensor):
            return x if x.dtype is dtype else x.to(dtype)
        if isinstance(x, np.ndarray):
            return import_module("keras").ops.convert_to_tensor(x).to(dtype)  # on the device that Keras uses
        return self._torch.tensor(x, dtype=dtype)

    def without_gradients(self) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = self._torch.no_grad()
        return context

    def copied(self, x: Any) -> Any:
        return x.detach().clone()

    def bits(self, x: Any) -> Any:
        return x.view(self._torch.int32)

    def floats(self, bits: Any) -> Any:
        return bits.view(self._torch.float32)

    def counting(self, size: int, like: Any) -> Any:
        return self._torch.arange(size, dtype=self._torch.int32, device=like.device)

    def like(self, numbers: np.ndarray, array: Any) -> Any:
        return self._torch.as_tensor(numbers, device=array.device)

    def part_by_part(
        self, update: Update, value: Any, gradient: Any, slots: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        """In place, in parts whose intermediate results stay in the processor's cache."""
        arrays = [value, gradient, *slots.values()]
        is_flat = all(x.shape == value.shape and x.is_contiguous() for x in arrays)
        if value.numel() <= PART or value.device.type != "cpu" or not is_flat:
            return update(value, gradient, slots)
        columns = [x.detach().view(-1).split(PART) for x in arrays]
        for parameter, pushed, *others in zip(*columns, strict=True):
            new, after = update(parameter, pushed, dict(zip(slots, others, strict=True)))
            parameter.copy_(new)
            for array, name in zip(others, slots, strict=True):
                array.copy_(after[name])
        return value, slots

    def kernel_steps(self) -> Any:
        return None if self._torch.compiler.is_compiling() else TorchSteps(self._torch)

    def bytes_by_device(self, variable: Any) -> dict[str, int]:
        value = variable.value
        device = value.device
        return {f"{device.type.upper()}:{device.index or 0}": value.numel() * value.element_size()}

    # What takes numbers, or is called otherwise.

    def maximum(self, x: Any, y: Any) -> Any:
        return self._extreme(x, y, "maximum", "min")

    def minimum(self, x: Any, y: Any) -> Any:
        return self._extreme(x, y, "minimum", "max")

    def _extreme(self, x: Any, y: Any, name: str, bound: str) -> Any:
        if not isinstance(x, self._torch.Tensor):
            x, y = y, x
        if not isinstance(x, self._torch.Tensor):
            return getattr(np, name)(x, y)
        if isinstance(y, self._torch.Tensor):
            return getattr(self._torch, name)(x, y)
        return self._torch.clamp(x, **{bound: y})

    def logical_and(self, x: Any, y: Any) -> Any:
        return x & y

    def logical_or(self, x: Any, y: Any) -> Any:
        return x | y

    def reduce_sum(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return self._torch.sum(x, dim=axis, keepdim=keepdims)

    def reduce_mean(self, x: Any, axis: Any = None, keepdims: bool = False) -> Any:
        return self._torch.mean(x, dim=axis, keepdim=keepdims)

    def reduce_max(self, x: Any) -> Any:
        return self._torch.max(x)

    def qr(self, matrix: Any) -> tuple[Any, Any]:
        q, r = self._torch.linalg.qr(matrix)
        return q, r

    def while_loop(self, condition: Any, body: Any, values: Sequence[Any]) -> Any:
        while bool(condition(*values)):
            values = body(*values)
        return values

    def expand_dims(self, x: Any, axis: int) -> Any:
        return self._torch.unsqueeze(x, axis)

    def transpose(self, x: Any, axes: Sequence[int] | None = None) -> Any:
        return self._torch.permute(x, tuple(reversed(range(x.ndim))) if axes is None else tuple(axes))


class TorchSteps:
    """The updates of a step in place by dtopt's kernel, by one call of all tensors."""

    def __init__(self, torch: Any):
        self._torch = torch
        self._updates: dict[tuple[int, str], tuple[Rule, maths.Update | None]] = {}
        self._start()

    def _start(self) -> None:
        self._steps = maths.Steps()
        self._written: list[Any] = []
        self._gradients: list[Any] = []  # they live until they are read

    def add(
        self,
        rule: Rule,
        value: Any,
        gradient: Any,
        slots: Mapping[str, Any],
        coefficients: Mapping[str, Any],
        decay: float | None,
        stored: Callable[[Sequence[str]], Sequence[maths.Stored]] | None = None,
    ) -> bool:
        """Add the update of value and slots, if the kernel can make it; return whether it can.

        Args:
          stored: returns how the named slots, and at last the variable, are stored, if the step packs them.
        """
        arrays, shape, dtype = [value, *slots.values()], value.shape, value.dtype
        if any(x.shape != shape or not x.is_cpu or not x.is_contiguous() for x in (*arrays, gradient)):
            return False
        if stored is None and any(x.dtype is not dtype for x in arrays):
            return False
        update = self._update_for(rule, "float32" if stored else str(dtype).removeprefix("torch."))
        if update is None or {*update.slots} != {*slots}:
            return False
        addresses = [slots[name].data_ptr() for name in update.slots]
        factor = 1.0 if decay is None else float(decay)
        how = () if stored is None else stored(update.slots)
        numbers = (coefficients, factor, value.numel(), how)
        self._steps.add(update, value.data_ptr(), gradient.data_ptr(), addresses, *numbers)
        self._written += arrays
        self._gradients.append(gradient)
        return True

    def _update_for(self, rule: Rule, dtype: str) -> maths.Update | None:
        """Return the update of a rule; `maths` is asked once in a step, as it reads the environment each time."""
        key = (id(rule), dtype)
        if key not in self._updates:
            self._updates[key] = rule, maths.update_for(rule, dtype)
        return self._updates[key][1]

    def run(self) -> None:
        """Make the updates."""
        if not self._written:
            return
        self._steps.run(self._torch.get_num_threads())
        self._torch.autograd.graph.increment_version(self._written)
        self._start()


BACKENDS: Mapping[str, type[Backend]] = {kind.name: kind for kind in (Jax, Torch)}


def check_rule(backend: Backend, functions: Sequence[str]) -> None:
    """Raises HyperparameterError: the backend lacks one of these functions that a rule calls."""
    for name in functions:
        if name not in ELEMENTWISE:
            getattr(backend, name)
