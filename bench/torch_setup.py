"""What the PyTorch peers share. Runs in workers only; torch is imported inside the functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bench import in_situ
from bench.case import parameter
from bench.options import clip_of
from bench.peer import Session, first, needs, wants, without

if TYPE_CHECKING:
    import numpy as np

    from bench.case import Case

FUSED = ("adam", "adamw", "sgd", "adagrad")
"""Those that torch has fused kernels for on CPU."""


def unavailable(case: Case) -> str | None:
    options = case.options
    return first(
        (
            "runs on cpu and gpu only" if case.device == "tpu" else None,
            needs("torch", install="torch"),
            without(case, "ftrl", "lion", "lamb"),
            "its Muon iterates in bfloat16" if case.algorithm.name == "muon" else None,
            wants(case, "rmsprop", "epsilon_inside", False),
            "its weight decay goes through the gradient" if options.weight_decay and not _decays(case) else None,
            "torch clips no norm of one tensor" if (options.clip or "").startswith("norm") else None,
            "torch's optimizers keep no moving average" if options.ema is not None else None,
            "torch's optimizers accumulate no gradients" if options.accumulate > 1 else None,
            "takes no sparse gradients that can be compared" if options.sparse_rows is not None else None,
            "its state is always placed like its parameters" if options.placement != "like_variable" else None,
        )
    )


def without_fused(case: Case) -> str | None:
    return unavailable(case) or (None if case.algorithm.name in FUSED else "has no fused kernel for it")


def overwrites_gradients(case: Case) -> str | None:
    """Torch's multi-tensor Nesterov writes into the gradients (`_multi_tensor_sgd`), which the steps here share."""
    nesterov = case.algorithm.name == "sgd" and case.algorithm.hyperparameters["nesterov"]
    return "its multi-tensor Nesterov overwrites the gradients, which the steps here share" if nesterov else None


def _decays(case: Case) -> bool:
    """Whether weights decay by themselves: always in these, and without momentum decay through the gradient of SGD is
    the same."""
    h, name = case.algorithm.hyperparameters, case.algorithm.name
    return name in ("adam", "adamw", "nadam", "adafactor") or (name == "sgd" and not h["momentum"])


def _optimizer(torch: Any, case: Case, parameters: list[Any], **variant: Any) -> Any:
    h, name = case.algorithm.hyperparameters, case.algorithm.name
    decay = {"weight_decay": case.weight_decay}
    if name == "adam" and case.weight_decay:
        name = "adamw"
    variant = {"lr": h["learning_rate"], **variant}
    if name in ("adam", "adamw", "adamax", "nadam"):
        variant |= {"betas": (h["beta_1"], h["beta_2"]), "eps": h["epsilon"]}
    if name in ("adam", "adamw"):
        kind = torch.optim.Adam if name == "adam" else torch.optim.AdamW
        return kind(parameters, amsgrad=h["amsgrad"], **decay, **variant)
    if name == "adamax":
        return torch.optim.Adamax(parameters, **variant)
    if name == "nadam":
        schedule = {"momentum_decay": h["schedule_decay"], "decoupled_weight_decay": True}
        return torch.optim.NAdam(parameters, **schedule, **decay, **variant)
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
    """Clips the gradients in place, as torch does; once clipped they stay so, at the same cost."""
    if case.options.clip is None:
        return lambda: None
    kind, limit = clip_of(case.options.clip)
    act = torch.nn.utils.clip_grad_value_ if kind == "value" else torch.nn.utils.clip_grad_norm_
    return lambda: act(parameters, limit, foreach=foreach)


def session(case: Case, *, compiled: bool = False, **variant: bool) -> Session:
    """A session of torch's optimizer with `fused=`, `foreach=` set as given."""
    import torch

    torch.set_num_threads(case.threads)
    device, dtype = "cuda" if case.device == "gpu" else "cpu", getattr(torch, case.options.dtype)

    def put(array: np.ndarray) -> Any:
        return torch.from_numpy(array).to(device, dtype)

    parameters = [put(parameter(case, i)).requires_grad_() for i in range(len(case.tensors))]
    optimizer = _optimizer(torch, case, parameters, **variant)
    clip = _clipping(torch, case, parameters, foreach=variant.get("foreach", True))

    def step() -> None:
        clip()
        optimizer.step()

    act = torch.compile(step) if compiled else step

    def place(index: int, array: Any) -> Any:
        parameters[index].grad = put(array)
        return parameters[index].grad

    return Session(
        place=place,
        apply=lambda gradients: act(),
        wait=torch.cuda.synchronize if device == "cuda" else (lambda: None),  # on CPU a step is done on return
        read=lambda index: parameters[index].detach().float().cpu().numpy(),
        compute=_compute(case, parameters, put),
        device_memory=torch.cuda.max_memory_allocated if device == "cuda" else None,
    )


def _compute(case: Case, parameters: list[Any], put: Callable[[np.ndarray], Any]) -> Callable[[], list[Any]] | None:
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
