"""`migrate.restore` on JAX and PyTorch, into optimizers of `for_keras` and Keras: the next steps are the source's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import migrate
from tests.helpers.breadth import broad
from tests.test_migrate.confirm import confirmed
from tests.test_migrate.live import test_restore
from tests.test_migrate.whole import test_resume
from tests.test_optim.keras.test_backends import program

KINDS = ("optim", "keras")
NAMES = {
    kind: [name for name, kinds in test_restore.CASES.items() if kinds.get(kind) == test_restore.EXACT]
    for kind in KINDS
}
DENSE = {"tf115-sgd-decay-clipvalue-embed": "embedding/embeddings: if a batch contains a row several times"}
"""What a source did with repeated rows of a table, of which gradients are dense on these backends."""
FEW = {"optim": ["keras231-nadam-eps-convbn"], "keras": ["keras38-nadam-mlp"]}


def _case(name: str, kind: str) -> dict[str, Any]:
    source, hints = test_resume._source(name), test_restore._hints(name)
    is_exact = migrate.read(source, **hints).fidelity == test_restore.EXACT
    return {
        "name": name,
        "kind": kind,
        "source": source,
        "hints": hints,
        "overrides": {} if is_exact else confirmed(source, **hints),
        "hints_of_restore": {k: v for k, v in test_restore.restore_hints(name).items() if k != "overrides"},
        "oracle": str(test_restore.CORPUS / name / "oracle.npz"),
        "steps": test_resume._document(name)["n"],
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("backend", "names"), [("jax", FEW), broad("jax", NAMES), broad("torch", NAMES)], ids=["few on jax", "jax", "torch"]
)
@pytest.mark.quick(1)
def test_the_next_steps(backend: str, names: dict[str, list[str]], kind: str, tmp_path: Path) -> None:
    path = tmp_path / "cases.json"
    path.write_text(json.dumps([_case(name, kind) for name in names[kind]]))
    results = program(backend, "restore_program", str(path), package="tests.test_migrate.live")
    assert [result["name"] for result in results] == names[kind]
    for result in results:
        if result["name"] in DENSE:
            assert result["fidelity"] == "approximate", result
            assert [reason[: len(DENSE[result["name"]])] for reason in result["reasons"]] == [DENSE[result["name"]]]
        else:
            assert result["fidelity"] == "exact", result
        assert result["what"].startswith(f"{kind}."), result
        assert max(result["errors"]) <= 1, result
