"""What the PyTorch peers share. Runs in workers only; torch is imported inside the functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bench.case import parameter
from bench.peer import Session, needs

if TYPE_CHECKING:
    import numpy as np

    from bench.case import Case


def unavailable(case: Case) -> str | None:
    if case.device == "tpu":
        return "runs on cpu and gpu only"
    return needs("torch", install="torch")


def _optimizer(torch: Any, case: Case, parameters: list[Any], **variant: bool) -> Any:
    h = case.algorithm.hyperparameters
    if case.optimizer == "adam":
        betas = (h["beta_1"], h["beta_2"])
        return torch.optim.Adam(parameters, lr=h["learning_rate"], betas=betas, eps=h["epsilon"], **variant)
    if case.optimizer == "adadelta":
        return torch.optim.Adadelta(parameters, lr=h["learning_rate"], rho=h["rho"], eps=h["epsilon"], **variant)
    return torch.optim.SGD(parameters, lr=h["learning_rate"], momentum=h.get("momentum", 0.0), **variant)


def session(case: Case, **variant: bool) -> Session:
    """A session of torch's optimizer with `fused=`, `foreach=` set as given."""
    import torch

    torch.set_num_threads(case.threads)
    device = "cuda" if case.device == "gpu" else "cpu"
    parameters = [torch.from_numpy(parameter(case, i)).to(device).requires_grad_() for i in range(len(case.tensors))]
    optimizer = _optimizer(torch, case, parameters, **variant)

    def place(index: int, array: np.ndarray) -> Any:
        parameters[index].grad = torch.from_numpy(array).to(device)
        return parameters[index].grad

    return Session(
        place=place,
        apply=lambda gradients: optimizer.step(),
        wait=torch.cuda.synchronize if device == "cuda" else (lambda: None),  # on CPU a step is done on return
        read=lambda index: parameters[index].detach().cpu().numpy(),
    )
