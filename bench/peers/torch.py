"""PyTorch's optimizers: fused, multi-tensor, one tensor at a time, compiled, and on sparse gradients."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.cases import in_situ
from bench.cases.options import clip_of
from bench.cases.sparse import Rows
from bench.cases.values import parameter
from bench.measuring import events
from bench.peers.abilities import EVERY_ROW, TOUCHED_ROWS, USUAL_ALGORITHMS, Abilities, same_either_way
from bench.peers.peer import Conventions, Peer, Session
from optim.errors import UnsupportedError

if TYPE_CHECKING:
    import numpy as np

    from bench.cases.case import Case

FUSED = ("adam", "adamw", "sgd", "adagrad")
"""Optimizers that have fused kernels on CPU in torch."""


def _bfloat16_muon(case: Case) -> str | None:
    return "its Muon iterates in bfloat16" if case.algorithm.name == "muon" else None


def _overwrites_gradients(case: Case) -> str | None:
    """Whether torch's multi-tensor Nesterov writes into the gradients (`_multi_tensor_sgd`), which the steps here
    share."""
    nesterov = case.algorithm.name == "sgd" and case.algorithm.hyperparameters["nesterov"]
    return "its multi-tensor Nesterov overwrites the gradients, which the steps here share" if nesterov else None


def _no_compiler(case: Case) -> str | None:
    compilers = [name for name in (os.environ.get("CXX", ""), "g++", "clang++") if name]
    missing = case.device == "cpu" and not any(shutil.which(name) for name in compilers)
    return _overwrites_gradients(case) or ("no C++ compiler for torch.compile" if missing else None)


def _sparse_tables(case: Case) -> Collection[str]:
    return (EVERY_ROW, TOUCHED_ROWS) if same_either_way(case) else (TOUCHED_ROWS,)


def _only_sparse(case: Case) -> str | None:
    if case.options.sparse_rows is None:
        return "is for sparse gradients: compare with --sparse-rows"
    if case.algorithm.name == "sgd" and case.algorithm.hyperparameters["momentum"]:
        return "its momentum of sparse gradients becomes dense"
    return None


def _decays(case: Case) -> bool:
    """Whether weights decay separately.

    They always do in these optimizers; without momentum, decay through the gradient of SGD is the same.
    """
    h, name = case.algorithm.hyperparameters, case.algorithm.name
    return name in ("adam", "adamw", "nadam", "radam", "adafactor") or (name == "sgd" and not h["momentum"])


def _optimizer(torch: Any, case: Case, parameters: list[Any], **variant: Any) -> Any:
    h, name = case.algorithm.hyperparameters, case.algorithm.name
    decay = {"weight_decay": case.weight_decay}
    if name == "adam" and case.weight_decay:
        name = "adamw"
    variant = {"lr": h["learning_rate"], **variant}
    if name in ("adam", "adamw", "adamax", "nadam", "radam"):
        variant |= {"betas": (h["beta_1"], h["beta_2"]), "eps": h["epsilon"]}
    if name in ("adam", "adamw"):
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return kind(parameters, amsgrad=h["amsgrad"], **decay, **variant)
    if name == "adamax":
        return torch.optim.Adamax(parameters, **variant)
    if name == "nadam":
        schedule = {"momentum_decay": h["schedule_decay"], "decoupled_weight_decay": True}
        return torch.optim.NAdam(parameters, **schedule, **decay, **variant)
    if name == "radam":
        return torch.optim.RAdam(parameters, decoupled_weight_decay=True, **decay, **variant)
    if name == "adadelta":
        return torch.optim.Adadelta(parameters, rho=h["rho"], eps=h["epsilon"], **variant)
    if name == "adagrad":
        start = {"initial_accumulator_value": h["initial_accumulator_value"]}
        return torch.optim.Adagrad(parameters, eps=h["epsilon"], **start, **variant)
    if name == "rmsprop":
        means = {"alpha": h["rho"], "eps": h["epsilon"], "momentum": h["momentum"], "centered": h["centered"]}
        return torch.optim.RMSprop(parameters, **means, **variant)
    if name == "adafactor":
        sizes = {"beta2_decay": h["beta_2_decay"], "eps": (h["epsilon_1"], h["epsilon_2"]), "d": h["clip_threshold"]}
        return torch.optim.Adafactor(parameters, **sizes, **decay, **variant)
    return torch.optim.SGD(parameters, momentum=h["momentum"], nesterov=h["nesterov"], **decay, **variant)


def _clipping(torch: Any, case: Case, parameters: list[Any], foreach: bool) -> Callable[[], object]:
    """Clip the gradients in place, as torch does; clipped gradients stay clipped, at the same cost."""
    if case.options.clip is None:
        return lambda: None
    kind, limit = clip_of(case.options.clip)
    act = torch.nn.utils.clip_grad_value_ if kind == "value" else torch.nn.utils.clip_grad_norm_
    return lambda: act(parameters, limit, foreach=foreach)


def _for_tables(torch: Any, case: Case, parameters: list[Any]) -> list[Any]:
    """Return the optimizers of a case with sparse gradients: one for the tables, one for all other tensors."""
    sparse = [case.is_sparse(tensor) for tensor in case.tensors]
    tables = [p for p, is_table in zip(parameters, sparse, strict=True) if is_table]
    others = [p for p, is_table in zip(parameters, sparse, strict=True) if not is_table]
    h = case.algorithm.hyperparameters
    if case.algorithm.name == "adam":
        moments = {"lr": h["learning_rate"], "betas": (h["beta_1"], h["beta_2"]), "eps": h["epsilon"]}
        first = torch.optim.SparseAdam(tables, **moments)
    else:
        first = _optimizer(torch, case, tables, foreach=False)
    return [first, _optimizer(torch, case, others, fused=True)] if others else [first]


def _rows(torch: Any, rows: Rows, put: Callable[[np.ndarray], Any]) -> Any:
    """Return rows of a table as torch's sparse gradient."""
    indices = torch.from_numpy(rows.indices)[None]
    return torch.sparse_coo_tensor(indices, put(rows.values), rows.shape, is_coalesced=True, check_invariants=False)


@dataclass(frozen=True)
class Device:
    """Where a case's tensors are. `put` brings an array there, in the dtype of the case."""

    name: str
    put: Callable[[Any], Any]
    wait: Callable[[], object]
    memory: Callable[[], int | None] | None
    events: Any = None
    """What times steps on a GPU."""


def device(case: Case) -> Device:
    """The device of a case, with its threads. Raises: UnsupportedError."""
    import torch

    torch.set_num_threads(case.threads)
    if case.device == "gpu" and not torch.cuda.is_available():
        raise UnsupportedError(
            f"torch {torch.__version__} finds no GPU: install torch as pytorch.org describes for CUDA"
        )
    dtype = getattr(torch, case.options.dtype)
    if case.device == "gpu":
        put = lambda array: torch.from_numpy(array).to("cuda", dtype)  # noqa: E731
        return Device("cuda", put, torch.cuda.synchronize, torch.cuda.max_memory_allocated, _Events(torch))
    return Device("cpu", lambda array: torch.from_numpy(array).to(dtype), lambda: None, None)  # done on return


def _session(case: Case, *, compiled: bool = False, sparse: bool = False, **variant: bool) -> Session:
    """A session of torch's optimizer with `fused=`, `foreach=` set as given."""
    import torch

    where = device(case)
    put = where.put
    parameters = [put(parameter(case, i)).requires_grad_() for i in range(len(case.tensors))]
    optimizers = _for_tables(torch, case, parameters) if sparse else [_optimizer(torch, case, parameters, **variant)]
    clip = _clipping(torch, case, parameters, foreach=variant.get("foreach", True))

    def step() -> None:
        clip()
        for optimizer in optimizers:
            optimizer.step()

    act = torch.compile(step) if compiled else step

    return Session(
        place=lambda index, array: _rows(torch, array, put) if isinstance(array, Rows) else put(array),
        hand=lambda index, gradient: setattr(parameters[index], "grad", gradient),
        apply=lambda gradients: act(),
        wait=where.wait,
        read=lambda index: parameters[index].detach().float().cpu().numpy(),
        compute=computing(case, parameters, put),
        device_memory=where.memory,
        events=where.events,
    )


class _Events:
    """Torch's own events on its current stream, which `bench.measuring.events` keeps busy."""

    name = "torch.cuda.Event"

    def __init__(self, torch: Any) -> None:
        self._first, self._last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.occupy = events.of_stream(torch.cuda.current_stream().cuda_stream, "").occupy

    def begin(self) -> None:
        self._first.record()

    def end(self) -> float:
        self._last.record()
        self._last.synchronize()
        return self._first.elapsed_time(self._last) / 1e3  # from milliseconds


def computing(case: Case, parameters: list[Any], put: Callable[[np.ndarray], Any]) -> Callable[[], list[Any]] | None:
    """Forward and backward pass; the gradients go where the optimizer finds them."""
    if not case.options.in_situ:
        return None
    batches = [None if array is None else put(array) for array in in_situ.inputs(case)]

    def run() -> list[Any]:
        for p in parameters:
            p.grad = None
        in_situ.loss(parameters, batches, lambda x: x.square().mean()).backward()
        return [p.grad for p in parameters]

    return run


_HAS = Abilities(
    ("torch",),
    "torch",
    algorithms=(USUAL_ALGORITHMS - {"ftrl", "lion", "lamb"}) | {"radam"},
    only={
        "radam": {"amsgrad": False, "epsilon_hat": True, "sma_threshold": 5.0, "total_steps": 0.0},
        "rmsprop": {"epsilon_inside": False},
    },
    clips=("value", "global_norm"),
    ema=False,
    accumulate=False,
    decays=_decays,
    tables=lambda case: (),
    devices=("cpu", "gpu"),
    but=_bfloat16_muon,
)


def _peer(name: str, summary: str, has: Abilities, conventions: Conventions | None = None, **options: Any) -> Peer:
    prepare = partial(_session, **options)
    peer_conventions = conventions or Conventions(paper_epsilon=True)
    return Peer(
        name,
        summary,
        __name__,
        has,
        prepare,
        packages=("torch",),
        conventions=peer_conventions,
        note="no mesh",
        waits="openmp",
    )


def _first(*reasons: Callable[[Case], str | None]) -> Callable[[Case], str | None]:
    return lambda case: next((text for reason in reasons if (text := reason(case))), None)


_MANY = replace(_HAS, but=_first(_bfloat16_muon, _overwrites_gradients))

PEERS = (
    _peer("torch-fused", "PyTorch, fused=True", replace(_HAS, algorithms=FUSED), fused=True),
    _peer("torch-foreach", "PyTorch, foreach=True", _MANY, foreach=True),
    _peer("torch-forloop", "PyTorch, foreach=False", _HAS, foreach=False),
    _peer(
        "torch-compile",
        "PyTorch, foreach=True, torch.compile",
        replace(_HAS, ways=("function",), but=_first(_bfloat16_muon, _no_compiler)),
        compiled=True,
        foreach=True,
    ),
    _peer(
        "torch-sparse",
        "PyTorch on sparse gradients: SparseAdam, Adagrad, SGD",
        replace(_HAS, algorithms=("adam", "adagrad", "sgd"), clips=(), tables=_sparse_tables, but=_only_sparse),
        Conventions(paper_epsilon=True, uncorrected_epsilon_of_tables=True),
        sparse=True,
    ),
)
