"""Gradients as local shards, for `optim.options.clipping` and for the kernels."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from optim.devices import on_every_device
from optim.executors import native
from optim.executors.plan import Selection, Shard
from optim.executors.work import scaled
from optim.layouts.placement import DTensorReader
from optim.native import direct
from optim.native.direct import Held
from optim.options.clipping import by_norms
from optim.precision import compute_dtype


class Tensors:
    """The gradients as tensors in Python, one per variable and device, or held for dtopt's own kernel.

    Each of the two is made on request, because it takes longer than to update a small variable.
    """

    def __init__(
        self,
        gradients: Sequence[Any],
        on_mesh: Sequence[bool],
        rows: Mapping[int, Held | tuple[Any, ...]],
        held_tensors: Held | None = None,
    ):
        """Args:
        gradients: for each variable a DTensor, if `on_mesh`, a local tensor, or a list of those of all devices.
        rows: by position of the variable, if these are the sums of some rows: the `places` of these.
        held_tensors: all that, if it is held already.
        """
        self._gradients = gradients
        self._on_mesh = on_mesh
        self.rows = rows
        self._parts: Sequence[Sequence[Any]] | None = None
        self._held_tensors = held_tensors
        self._lock = threading.Lock()

    @property
    def parts(self) -> Sequence[Sequence[Any]]:
        """List over variables, of lists over the local devices of each."""
        if self._parts is None:  # repeated reads by threads need not wait for each other
            with self._lock:
                self._parts = self._parts or self._unpack()
        return self._parts

    def _unpack(self) -> Sequence[Sequence[Any]]:
        unpack = DTensorReader().parts if any(self._on_mesh) else list
        pairs = zip(self._gradients, self._on_mesh, strict=True)
        return [g if isinstance(g, list) else unpack(g) if on_mesh else [g] for g, on_mesh in pairs]

    @property
    def held_tensors(self) -> Held:
        """The same tensors, one after the other, and then the rows."""
        with self._lock:
            if self._held_tensors is None:
                flat = self._gradients
                if list in set(map(type, flat)):
                    flat = [t for g in flat for t in (g if isinstance(g, list) else (g,))]
                places = [place for place in self.rows.values() if not isinstance(place, Held)]
                self._held_tensors = direct.hold([*flat, *itertools.chain(*places)])
            return self._held_tensors

    def positions(self, count: int) -> dict[int, int]:
        """Return where the rows of a variable's gradient are among the held tensors, by position of the variable.

        They follow `count` gradients. For rows that the kernel has sorted the result is their placeholder.
        """
        places_: dict[int, int] = {}
        for i, places in self.rows.items():
            places_[i] = direct.place_of(places) if isinstance(places, Held) else count
            count += 0 if isinstance(places, Held) else len(places)
        return places_


class ShardGradients:
    """The gradients of one step: a list over variables of lists of shards, one per local device.

    Scaling and clipping stay pending, because dtopt's own kernel does them in its pass. A gradient is its `parts` times
    its factor of `factors`, then clipped to ±`limit`.
    """

    def __init__(
        self,
        tensors: Tensors,
        selection: Selection,
        factors: list[float] | None = None,
        limit: float | None = None,
        squares: list[float] | None = None,
    ):
        self._tensors = tensors
        self.factors = factors
        self.limit = limit
        self._selection = selection
        self._squares = squares
        """Sums of squares of the `parts`, once they are computed."""

    @property
    def parts(self) -> Sequence[Sequence[Any]]:
        return self._tensors.parts

    @property
    def held_tensors(self) -> Held:
        return self._tensors.held_tensors

    @property
    def rows(self) -> dict[int, int]:
        """`Tensors.positions`."""
        return self._tensors.positions(sum(self._selection.counts))

    def control(self, group: int) -> None:
        """Return None: the host knows everything pending."""

    @property
    def has_no_pending(self) -> bool:
        """Whether nothing is pending, so that `part` computes nothing."""
        return self.factors is None and self.limit is None

    def part(self, i: int, k: int) -> Any:
        """Return the gradient of variable `i` on its k-th device, with everything pending applied."""
        part = self.parts[i][k]
        if self.factors is not None and self.factors[i] != 1.0:
            part = scaled(part, self.factors[i])
        return part if self.limit is None else tf.clip_by_value(part, -self.limit, self.limit)

    def clip_values(self, limit: float) -> ShardGradients:
        if self.limit is not None:
            self._apply_pending()
        return ShardGradients(self._tensors, self._selection, self.factors, limit, self._squares)

    def scale(self, factors: list[float]) -> ShardGradients:
        """Multiply by a factor each. Factors of two calls are multiplied in float64, the gradients only once."""
        if self.limit is not None:
            self._apply_pending()
        if self.factors is not None:
            factors = [a * b for a, b in zip(self.factors, factors, strict=True)]
        return ShardGradients(self._tensors, self._selection, factors, None, self._squares)

    def squared_norms(self) -> list[float]:
        """Return the sum of squares of each gradient: NaN or infinite if one of its elements is (in float64: above
        1e154)."""
        if self.limit is not None:
            self._apply_pending()
        squares = self._square_sums()
        if self.factors is None:
            return squares
        if not all(map(math.isfinite, squares)):  # too large, possibly only before they are scaled down
            self._apply_pending()
            return self._square_sums()
        return [square * factor * factor for square, factor in zip(squares, self.factors, strict=True)]

    def is_finite(self) -> bool:
        """Whether all numbers are finite; call it before anything is pending. A norm need not read them again."""
        if all(map(math.isfinite, self._square_sums())):
            return True

        def has_bad(device: str) -> bool:
            placed = self._selection.by_device[device]
            return any(_has_bad(self.parts[i][shard.part]) for i, shard in placed if self._counts(i, shard))

        return not any(on_every_device(self._selection.devices, has_bad))

    def cast(self) -> None:
        """Bring the gradients of variables that have a master copy to its dtype."""
        parts = self._run_on_each(
            lambda i, shard: (
                self.parts[i][shard.part] if shard.rounding is None else tf.cast(self.parts[i][shard.part], shard.dtype)
            )
        )
        self._tensors = self._unpacked(parts)

    def clip_norms(self, limit: float, is_joint: bool) -> ShardGradients:
        return by_norms(self, limit, is_joint)

    def sqrt(self, scalar: float) -> float:
        return math.sqrt(scalar)

    def maximum(self, a: float, b: float) -> float:
        return a if math.isnan(a) else max(a, b)

    def _apply_pending(self) -> None:
        """Apply everything pending, once for all users of this object."""
        assert not any(isinstance(rows, Held) for rows in self._tensors.rows.values()), "norms need sums"
        self.cast()
        parts = self._run_on_each(lambda i, shard: tf.cast(self.part(i, shard.part), self.parts[i][shard.part].dtype))
        self._tensors = self._unpacked(parts)
        self.factors, self.limit, self._squares = None, None, None

    def _unpacked(self, parts: list[list[Any]]) -> Tensors:
        return Tensors(parts, [False] * len(parts), self._tensors.rows)

    def _counts(self, i: int, shard: Shard) -> bool:
        """Whether the gradient of a shard counts in norms; sums of rows are those of the whole table everywhere."""
        return shard.part == 0 if i in self._tensors.rows else shard.primary

    def _run_on_each(self, task: Callable[[int, Shard], Any]) -> list[list[Any]]:
        """Run `task(variable, shard)` for every shard on the shard's device, devices at the same time."""
        results: list[list[Any]] = [[None] * count for count in self._selection.counts]

        def on_device(device: str) -> None:
            for i, shard in self._selection.by_device[device]:
                results[i][shard.part] = task(i, shard)

        on_every_device(self._selection.devices, on_device)
        return results

    def _square_sums(self) -> list[float]:
        """Return the sum of each whole gradient, without anything pending."""
        if self._squares is None:
            self._squares = self._add_up()
        return self._squares

    def _add_up(self) -> list[float]:
        """Add up each shard once, however many replicas it has; over devices in float64."""
        sums: list[list[float]] = [[] for _ in self._selection.counts]
        rest: dict[str, list[tuple[int, Shard]]] = {}
        here: list[tuple[int, Shard]] = []
        for device, placed in self._selection.by_device.items():
            for i, shard in placed:
                if not self._counts(i, shard):
                    continue
                if native.why_not_here(shard.tracked) or not direct.available():
                    rest.setdefault(device, []).append((i, shard))
                else:
                    here.append((i, shard))
        if here:
            sources = [self._selection.offsets[i] + shard.part for i, shard in here]
            known = self._selection.batches
            squares = native.square_sums(self.held_tensors, sources, None if known is None else known[1])
            for (i, _), square in zip(here, squares, strict=True):
                sums[i].append(square)
        for others in on_every_device(list(rest), lambda device: self._squares_of(rest[device])):
            for i, square in others:
                sums[i].append(square)
        return [math.fsum(parts) if all(map(math.isfinite, parts)) else sum(parts) for parts in sums]

    def _squares_of(self, placed: Sequence[tuple[int, Shard]]) -> list[tuple[int, float]]:
        if all(native.adds_up_parts(shard.tracked) for _, shard in placed):  # the host waits once for all
            parts = [self.parts[i][shard.part] for i, shard in placed]
            sums = native.squares_on_gpu(parts, placed[0][1].variable.device).numpy().tolist()
            return list(zip((i for i, _ in placed), sums, strict=True))
        return [(i, _square_sum(self.parts[i][shard.part])) for i, shard in placed]


def _square_sum(part: Any) -> float:
    square = 2.0 * float(tf.nn.l2_loss(tf.cast(part, compute_dtype(part.dtype))))
    return square if math.isfinite(square) else 2.0 * float(tf.nn.l2_loss(tf.cast(part, tf.float64)))


def _has_bad(part: Any) -> bool:
    return not bool(tf.reduce_all(tf.math.is_finite(part)))
