"""A float64 variable that programs read as float32, like Keras's own: the constant learning rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf


class Float32View(tf.Variable, tf.__internal__.types.Tensor):
    """The interface of a variable, for `exact`; reads return float32.

    Assigning the same float32 that was read changes nothing, so that `exact` keeps its digits.
    """

    def __init__(self, exact: tf.Variable):
        self.exact = exact

    def __getattr__(self, name: str) -> Any:  # attributes of some kinds of variables, such as `handle` and `layout`
        if name == "exact":
            raise AttributeError(name)
        return getattr(self.exact, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "exact":
            self.__dict__[name] = value
        else:
            setattr(self.exact, name, value)

    def __repr__(self) -> str:
        return repr(self.exact).replace("float64", "float32")

    def __hash__(self) -> int:
        return id(self.exact)

    @property
    def dtype(self) -> tf.DType:
        return tf.float32

    def read_value(self, *args: Any, **kwargs: Any) -> tf.Tensor:
        return tf.cast(self.exact.read_value(*args, **kwargs), tf.float32)

    value = _dense_var_to_tensor = read_value

    def numpy(self) -> Any:
        return np.float32(self.exact.numpy())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self.numpy(), dtype)

    def __float__(self) -> float:
        return float(self.numpy())

    def __int__(self) -> int:
        return int(self.numpy())

    def __bool__(self) -> bool:
        return bool(self.numpy())

    def __format__(self, spec: str) -> str:
        return format(self.numpy(), spec) if spec else repr(self)

    def __reduce__(self) -> Any:
        return Float32View, (self.exact,)

    def assign(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        """Assign like `tf.Variable.assign`; a Python number keeps float64."""
        if isinstance(value, float):
            return self._view_of(self.exact.assign(value, *args, **kwargs))
        shown, exact = self.read_value(), self.exact.read_value()
        number = tf.convert_to_tensor(value)
        number = tf.cast(number, tf.float64)
        is_same = tf.equal(tf.cast(number, tf.float32), shown)
        return self._view_of(self.exact.assign(tf.where(is_same, exact, number), *args, **kwargs))

    def assign_add(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return self._view_of(self.exact.assign_add(tf.cast(delta, tf.float64), *args, **kwargs))

    def assign_sub(self, delta: Any, *args: Any, **kwargs: Any) -> Any:
        return self._view_of(self.exact.assign_sub(tf.cast(delta, tf.float64), *args, **kwargs))

    def _view_of(self, assigned: Any) -> Any:
        """Return the result of an assignment."""
        return self if isinstance(assigned, tf.Variable) else assigned


def exact(value: Any) -> Any:
    """Return the variable of a view; return anything else unchanged."""
    return value.exact if isinstance(value, Float32View) else value


def _of_exact(name: str) -> Any:
    return property(lambda self: getattr(self.exact, name))


def _operator(name: str) -> Any:
    def operate(self: Float32View, *others: Any) -> Any:
        return getattr(self.read_value(), name)(*others)

    operate.__name__ = name
    return operate


for _name in set(dir(tf.Variable)) - set(dir(object)) - set(vars(Float32View)):
    if not _name.startswith("__") and _name not in ("_abc_impl", "_variable_call"):
        setattr(Float32View, _name, _of_exact(_name))
for _name in tf.Tensor.OVERLOADABLE_OPERATORS:
    setattr(Float32View, _name, _operator(_name))
tf.register_tensor_conversion_function(
    Float32View,
    lambda value, dtype=None, name=None, as_ref=False: tf.convert_to_tensor(value.read_value(), dtype, name=name),
)
