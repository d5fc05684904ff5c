"""The gradients of an eager step on one GPU; the host learns nothing about them before the step is launched."""

from __future__ import annotations

from dataclasses import dataclass, replace

from optim.executors.shard_gradients import Tensors
from optim.native import direct
from optim.native.direct import Held


@dataclass
class LaunchedGradients:
    """Gradients for `optim.options.clipping` and for dtopt's own kernel.

    The GPU computes and keeps their factors, and whether one of them is not finite, so that there is no step. The
    launches of the step read these there.

    Attributes:
      scale: a factor that is known in advance. checks: whether a gradient that is not finite prevents the step.
      norm: the limit of norms, and whether it limits the joint norm. limit: then each element is clipped to ±limit.
    """

    tensors: Tensors
    count: int
    scale: float
    checks: bool
    norm: tuple[float, bool] | None = None
    limit: float | None = None
    control_memory: Held | None = None

    def clip_values(self, limit: float) -> LaunchedGradients:
        return replace(self, limit=limit)

    def clip_norms(self, limit: float, is_joint: bool) -> LaunchedGradients:
        assert self.limit is None, "norms are taken of what is not clipped yet"
        return replace(self, norm=(limit, is_joint))

    @property
    def factors(self) -> list[float]:
        """Positions of the gradients' factors in the control memory."""
        return [float(1 + i) for i in range(self.count)]

    @property
    def held_tensors(self) -> Held:
        return self.tensors.held_tensors

    @property
    def rows(self) -> dict[int, int]:
        """`Tensors.positions`."""
        return self.tensors.positions(self.count)

    def control(self, group: int) -> Held:
        """Return the control memory, computed on the GPU of a group at the first call."""
        if self.control_memory is None:
            limit, is_joint = self.norm or (0.0, False)
            numbers = (self.scale, limit, float(is_joint), float(self.checks))
            self.control_memory = direct.control(group, self.held_tensors, range(self.count), numbers)
        return self.control_memory

    def was_left_out(self) -> bool:
        """Whether the step was left out (waits)."""
        assert self.control_memory is not None, "it was launched"
        return direct.is_left_out(self.control_memory)
