"""Report rounding of 16-bit variables: Keras and TensorFlow round each part of a step, `optim` steps in float32."""

from __future__ import annotations

from migrate.bytes.messages import some
from migrate.readers.keras import for_keras, layers
from migrate.state import OptimizerState, Stored

OPTIM = "optim"


def difference(state: OptimizerState, by: str | None) -> str:
    """Explain why steps of such variables differ from the source's; empty if they don't.

    Args:
      by: what makes the steps: a generation of Keras, OPTIM, or None for another project's optimizer.
    """
    half = [v for v in state.variables if v.trainable and v.dtype in ("float16", "bfloat16")]
    if not half or state.source is None:
        return ""
    before = _rounded_by(state.source)
    if before == by:
        return ""
    names, dtypes = some([v.name for v in half]), " and ".join(dict.fromkeys(v.dtype for v in half))
    return (
        f"{names}: {dtypes}, to which each generation of Keras rounds rates, betas and the parts of a step in its own"
        " way" + ("; optim steps in float32" if OPTIM in (before, by) else "")
    )


def in_float8(state: OptimizerState) -> str:
    """Explain why `optim` differs for layers that Keras 3 trains in float8; empty without them."""
    if state.source is None or not state.source_traits.trains_in_float8:
        return ""
    shapes: dict[str, list[tuple[int, ...]]] = {}
    for v in state.source.variables:
        shapes.setdefault(v.name.rpartition("/")[0], []).append(v.shape)
    names = [name for name, layer_shapes in shapes.items() if layers.in_float8(layer_shapes)]
    return f"{some(names)}: trained in float8, with scales that Keras overwrites and optim does not" if names else ""


def _rounded_by(source: Stored) -> str | None:
    """The generation that wrote a source, or OPTIM; earlier approximations are among its reasons."""
    is_own = source.format == "slots" or for_keras.is_config(source.optimizer_config)
    return OPTIM if is_own else source.generation
