"""A tiny workload for real peers; run as a program it checks those of torch and JAX, which cannot share a process
with TensorFlow, and prints a JSON list of [peer, optimizer, options, error or reason]."""

from __future__ import annotations

import json
import sys
from typing import Any

from bench import peers
from bench.cases.case import Case
from bench.cases.layouts import parse_mesh
from bench.cases.options import Options
from bench.cases.workloads import Tensor, Workload
from bench.step import agreement

SMALL = Workload(
    "small",
    "",
    (
        Tensor("table", (12, 8), 0, table=True),
        Tensor("kernel", (8, 16), 1),
        Tensor("conv", (3, 3, 4, 8), 3),
        Tensor("bias", (16,), 0),
        Tensor("norm", (6,)),
    ),
)


def made(optimizer: str = "adam", **options: Any) -> Case:
    """A case whose tensors are looked up later, when the workload is the small one."""
    return Case("small", optimizer, parse_mesh("2x2"), "megatron", options=Options(**options))


def checked(name: str, case: Case) -> agreement.Agreement:
    (peer,) = peers.find((name,))
    assert peer.unavailable(case) is None
    session = peer.prepare(case)
    session.calls = case.options.accumulate
    agreement.give_gradients(case, session, 0)
    session.run(1)
    found = agreement.check(case, session, peer.conventions)
    if session.compute is not None:
        gradients = session.compute()
        assert len(gradients) == len(case.tensors)
        session.apply(gradients)
        session.synchronise()
    return found


def elsewhere(keras: str) -> list[tuple[str, Case]]:
    """What is checked in a separate process, in which Keras runs on a backend."""
    ours = [
        (f"optim-{keras}", made("adamw:amsgrad=true", clip="global_norm=0.1", ema=0.9)),
        (f"optim-{keras}", made("rmsprop:momentum=0.9:centered=true", weight_decay=0.1, dtype="bfloat16")),
        (f"optim-{keras}", made("muon", accumulate=2)),
        (f"optim-{keras}", made("lion", in_situ=True)),
    ]
    if keras == "torch":
        return ours
    return [
        *ours,
        ("keras3-jax", made("adam", clip="global_norm=0.1")),
        ("torch-foreach", made("adam", clip="global_norm=0.1")),
        ("torch-fused", made("adamw:amsgrad=true", clip="value=0.01")),
        ("torch-foreach", made("nadam:schedule_decay=0.004", weight_decay=0.1)),
        ("torch-forloop", made("rmsprop:momentum=0.9:centered=true:epsilon_inside=false")),
        ("torch-foreach", made("adafactor", in_situ=True)),
        ("torch-foreach", made("adamax", dtype="bfloat16")),
        ("optax", made("lamb", clip="global_norm=0.1", ema=0.9, accumulate=2)),
        ("optax", made("lion", in_situ=True)),
        ("torch-forloop", made("radam:epsilon_hat=true", weight_decay=0.1)),
        ("optax", made("adabelief:rectify=false", weight_decay=0.1)),
        ("optax", made("adafactor")),
        ("optax", made("cocob")),
        ("optax", made("lars")),
        ("optax", made("muon:nesterov=false")),
        ("optax", made("novograd", accumulate=2)),
        ("optax", made("schedule-free-adamw:r=0", weight_decay=0.1)),
    ]


def main() -> None:
    import bench.cases.case

    bench.cases.case.workload = lambda name: SMALL  # type: ignore[assignment]
    found = []
    for name, case in elsewhere(sys.argv[1]):
        (peer,) = peers.find((name,))
        reason = peer.unavailable(case)
        checked_ = None if reason else checked(name, case)
        result: Any = reason or (checked_ and [checked_.agrees, checked_.error])
        found.append([name, case.optimizer, " ".join(case.options.words()), result])
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
