"""No altered source and no wrong or missing hint may be called exact and then continue otherwise than its release did.

The alterations are those of `alterations` that leave evidence: the source still says in another place what was altered,
or no longer says it at all. What is exact all the same is replayed against the release's own next steps.
`python -m tests.adversary FOLDER` does so with other cases, and counts those that leave none, too.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import adversary
from tests.places import CORPUS

REPRESENTATIVE = ("keras38-adamw-convbn",)
EVERY = adversary.cases(CORPUS)


def _false_exact(name: str, scratch: Path) -> list[str]:
    """Alterations of a case that are called exact and go on otherwise."""
    outcomes = adversary.attacked(CORPUS / name, scratch, only_told=True)
    assert outcomes or name in NOT_RIGHT
    return [f"{o.alteration.kind}, {o.alteration.what}: {o.why}" for o in outcomes if o.verdict == "denied"]


NOT_RIGHT = (
    "extra-tf24-adam-restored-nested-same-npz",
    "extra-tf24-adam-restored-same-shapes-npz",
    "extra-tf24-adam-two-optimizers-ckpt",
    "extra-tf24-adam-unfrozen-later-npz",
    "extra-tf29-adam-refrozen-npz",
    "extra-tfk221-legacy-adam-keras",
    "extra-k122-adam-saver",
    "extra-tfm29-lars-h5",
    "extra-tf215-new-adam-own-weight-ckpt",
    "extra-tfk221-new-adam-dict-held-weights",
    "extra-k122-adam-two-saver",
    "extra-k231-adam-two-saver",
    "extra-tf19-adam-clipnorm-h5",
    "extra-k216-sgd-refrozen-saver",
    "extra-tf215-adam-twins-alone",
    "extra-k231-sgd-same-shapes-saver",
    "extra-k224-sgd-twins-flipped-h5",
    "tf29-exp-rmsprop-centered-momentum-embed",
    "extra-keras314-schedule-free-text-keras",
    "extra-tf115-contrib-powersign-saver",
)
"""Cases that are refused as they are, or that a wrong confirmation makes exact."""


@pytest.mark.parametrize("name", REPRESENTATIVE)
def test_nothing_altered_is_exact_and_wrong(name: str, tmp_path: Path) -> None:
    assert _false_exact(name, tmp_path) == []


@pytest.mark.breadth
@pytest.mark.parametrize("name", [name for name in EVERY if name not in REPRESENTATIVE])
def test_nothing_else_altered_is_exact_and_wrong(name: str, tmp_path: Path) -> None:
    assert _false_exact(name, tmp_path) == []
