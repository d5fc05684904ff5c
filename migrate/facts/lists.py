"""In which order releases list what they save."""

from __future__ import annotations

from migrate.facts.fact import Fact
from migrate.releases.table import Release

SORTED, MODELS = "sorted", "model's"


def _order(r: Release) -> str:
    is_early = r.traits.has_keras1_layers or (r.is_native and r.keras_number < (2, 0, 6))
    return SORTED if is_early else MODELS


OWNERS = Fact(
    "slots",
    "In which order of variables does an optimizer keep slots?",
    _order,
    {SORTED: "sorted slots by the names of their variables", MODELS: "kept them in the model's order"},
    "`optimizers.py` of Keras 1.0.6 to 2.0.6, and of TF 1.2 and 1.3",
)
FACTS = (OWNERS,)
