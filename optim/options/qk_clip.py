"""QK-clip: scale down the projections of queries and keys of heads whose attention logits became too large.

    γ = min(1, τ / S) of each head, S the largest of its logits        W_q ← γ^α · W_q        W_k ← γ^(1−α) · W_k

Kimi Team, "Kimi K2: Open Agentic Intelligence" (2025, arXiv:2507.20534), section 2.1 and algorithm 1: after a step of
Muon, which makes it MuonClip. Logits of a head are products of its queries and keys, so they shrink by γ.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any

from optim import lazy
from optim.errors import HyperparameterError, MismatchError
from optim.hyperparameters import to_number

if TYPE_CHECKING:
    import tensorflow as tf
    from tensorflow.experimental import dtensor
else:
    tf = lazy.modules("tensorflow")
    dtensor = lazy.modules("tensorflow.experimental.dtensor")


class QKClip:
    """Scales the query and key projections of attention heads whose logits exceed a threshold; call it after a step.

    It works eagerly, in a `tf.function`, in the `train_step` of a Keras model, on meshes, and with Keras on JAX (not in
    its stateless steps) and PyTorch. With any optimizer; with `optim.Muon` it is MuonClip. With `master_copies`, call
    `optimizer.refresh_master_copies(...)` on the same variables afterwards.

    Args:
      query, key: the variables of one attention layer that make its queries and its keys: kernels, and biases if there
        are any.
      threshold: τ, the largest logit that is allowed, > 0.
      query_share: α in [0, 1], the part of the scaling that the query takes.
      axis: the dim of all these variables that counts the heads, or the heads times the numbers of each. -2 fits
        Keras's `MultiHeadAttention`; -1 fits `Dense` layers whose outputs are divided into heads later.
      key_heads: heads of the keys, if there are fewer than of queries (grouped-query attention): each belongs to as
        many queries in a row. Query heads that share a key head are scaled by the largest of their logits.

    Raises:
      HyperparameterError: out of range, or no variables.
    """

    def __init__(
        self,
        query: Sequence[Any],
        key: Sequence[Any],
        threshold: float = 100.0,
        query_share: float = 0.5,
        axis: int = -2,
        key_heads: int | None = None,
    ):
        self.query, self.key = tuple(query), tuple(key)
        if not self.query or not self.key:
            raise HyperparameterError("QKClip needs variables of queries and of keys: QKClip([w_q], [w_k])")
        limit, share = to_number("threshold", threshold), to_number("query_share", query_share)
        if limit is None or not 0 < limit < float("inf"):
            raise HyperparameterError(f"threshold must be a positive, finite number, got {threshold!r}")
        if share is None or not 0 <= share <= 1:
            raise HyperparameterError(f"query_share must be in [0, 1], got {query_share!r}")
        if key_heads is not None and int(key_heads) < 1:
            raise HyperparameterError(f"key_heads must be at least 1, got {key_heads!r}")
        self.threshold, self.query_share, self.axis, self.key_heads = limit, share, int(axis), key_heads

    def __call__(self, max_logits: Any) -> None:
        """Scale the variables.

        Args:
          max_logits: the largest logit of each head of queries over the batch and all positions, as the softmax gets
            them; shape (heads,). A head whose number is not finite stays as it is.

        Raises:
          MismatchError: the heads do not divide the `axis` of a variable, or `key_heads` does not divide them. Then
            nothing changed.
        """
        shape = tuple(max_logits.shape)
        if len(shape) != 1:
            raise MismatchError(f"max_logits must have the shape (heads,), got {shape}")
        heads = int(shape[0])
        key_heads = heads if self.key_heads is None else int(self.key_heads)
        if heads % key_heads:
            raise MismatchError(f"max_logits has {heads} heads, which key_heads={key_heads} does not divide")
        both = ((self.query, heads, self.query_share), (self.key, key_heads, 1.0 - self.query_share))
        for variables, count, _ in both:
            for variable in variables:
                self._check(variable, count)
        for variables, _, share in both:
            for variable in variables:
                self._scale(variable, max_logits, key_heads, share)

    def _check(self, variable: Any, heads: int) -> None:
        dims = [int(size) for size in variable.shape]
        if not -len(dims) <= self.axis < len(dims) or not heads or dims[self.axis] % heads:
            raise MismatchError(
                f"{heads} heads do not divide dim {self.axis} of {variable.name!r}, which has shape {dims}; pass the"
                " axis that counts heads to QKClip, and key_heads if keys have fewer"
            )

    def _scale(self, variable: Any, max_logits: Any, key_heads: int, share: float) -> None:
        xp = _namespace()
        dims = [int(size) for size in variable.shape]
        axis = self.axis % len(dims)
        value = xp.convert_to_tensor(variable)
        logits = xp.cast(xp.convert_to_tensor(max_logits), "float64" if "float64" in str(value.dtype) else "float32")
        is_over = xp.logical_and(logits > self.threshold, logits < float("inf"))
        ratio = self.threshold / xp.where(is_over, logits, xp.ones_like(logits) * self.threshold)
        group = int(max_logits.shape[0]) // key_heads
        if group > 1:
            ratio = xp.reshape(ratio, [key_heads, group])
            ratio = reduce(xp.minimum, [ratio[:, i] for i in range(group)])
        repeats = xp.ones([1, dims[axis] // key_heads], logits.dtype)
        factor = xp.reshape(xp.reshape(ratio**share, [key_heads, 1]) * repeats, [-1])
        factor = xp.reshape(factor, [dims[axis] if dim == axis else 1 for dim in range(len(dims))])
        layout = getattr(variable, "layout", None)
        if layout is not None and lazy.uses_tensorflow() and tf.executing_eagerly() and not dtensor.is_dtensor(factor):
            factor = dtensor.copy_to_mesh(factor, dtensor.Layout.replicated(layout.mesh, len(dims)))
        variable.assign(value * xp.cast(factor, value.dtype))


def _namespace() -> Any:
    """Return TensorFlow, or on Keras's other backends `keras.ops`."""
    if lazy.uses_tensorflow():
        return tf
    from keras import ops

    return ops
