"""What is done to each gradient of a row that a batch has several times, before they are summed: `repeated_rows`.

TensorFlow's gradient of a table has one slice for each time that a batch names a row. What releases did with them:

    summed first (Keras 1, tf.train), then clipped and squared                  ()
    each clipped, then summed, then squared (OptimizerV2; Keras 2.10 and later) ("clip",)
    each clipped, each squared (Keras 3; `experimental` classes of Keras 2.9)   ("clip", "square")
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from optim.errors import HyperparameterError, UnsupportedError
from optim.options.base import Option, Part
from optim.options.option_objects import GradientsClipOption

CLIP, SQUARE = "clip", "square"


def check(value: Any) -> tuple[str, ...]:
    """The words of `value`, each once. Raises HyperparameterError: it is no sequence of them."""
    words = None if isinstance(value, str) or not isinstance(value, Sequence) else list(value)
    if words is None or any(word not in (CLIP, SQUARE) for word in words):
        raise HyperparameterError(f'repeated_rows must be a sequence out of "{CLIP}" and "{SQUARE}", got {value!r}')
    return tuple(word for word in (CLIP, SQUARE) if word in words)


class RepeatedRows(Part):
    """What is done to each of the slices of one row."""

    options: ClassVar = {
        "repeated_rows": Option(
            (),
            "what is done to each of the gradients that `IndexedSlices` have for one row, before they are summed:"
            ' `"clip"` (norms count each, too), `"square"` (where the algorithm takes the square, or the absolute'
            " value, of the gradient alone), or both, as Keras 3 on TensorFlow; OptimizerV2 clips each",
        ),
    }

    def __init__(self, value: Any):
        self._doing = check(value)

    @property
    def repeated_rows(self) -> list[str]:
        return list(self._doing)

    def acts(self, clip: GradientsClipOption) -> bool:
        """Whether there is anything to do before gradients are summed."""
        return self.squares or (CLIP in self._doing and clip.active)

    @property
    def squares(self) -> bool:
        return SQUARE in self._doing

    def change(self, name: str, value: Any) -> None:
        self._doing = check(value)

    def check(self, clip: GradientsClipOption, *, accumulates: bool, is_coupled: bool, own_step: str | None) -> None:
        """Refuse options that exclude it.

        Args:
          is_coupled: whether weight decay joins gradients. own_step: what updates variables, if no rule does.

        Raises:
          UnsupportedError: there is such an option. HyperparameterError: it would have no effect.
        """
        if self._doing and accumulates:
            raise UnsupportedError("repeated_rows: gradient_accumulation_steps gathers sums, of which no part is known")
        if not self.squares:
            return
        if own_step is not None:
            raise HyperparameterError(f'repeated_rows: "{SQUARE}" has no effect: {own_step} has its own update_step')
        if is_coupled:
            raise UnsupportedError(
                f'repeated_rows: "{SQUARE}" squares gradients, not what decoupled_weight_decay=False adds to their sum'
            )
        if clip.active and CLIP not in self._doing:
            raise UnsupportedError(
                f'repeated_rows: what is clipped is a sum, of which no part is left to square; use ["{CLIP}",'
                f' "{SQUARE}"]'
            )
