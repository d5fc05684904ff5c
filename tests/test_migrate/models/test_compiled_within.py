"""A GAN whose discriminator was compiled, and then the model of both: the file says whose optimizer is whose."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import migrate
import optim
from optim.errors import UnsupportedError
from tests.helpers import next_steps
from tests.helpers.keras_releases import needs_keras
from tests.places import GAN

SAVED_MODELS = ("compiled-tf213", "compiled-tf24")
KERAS = ("compiled-tf213-keras", pytest.param("compiled-keras3", marks=needs_keras("3.13")))
OF_DISCRIMINATOR = "layer_with_weights-1.optimizer"


def _source(case: str) -> Path:
    return GAN / case / "source" / ("saved_model" if case in SAVED_MODELS else "model.keras")


def _goes_on(case: str, which: str, folder: Path, optimizer_path: str | None) -> None:
    import tensorflow as tf

    oracle, hints = np.load(GAN / case / "oracle.npz"), {"optimizer_path": optimizer_path}
    report = migrate.migrate_checkpoint(_source(case), folder / "out", **hints)
    assert (report.fidelity, report.iterations) == ("exact", int(oracle[f"iterations/{which}"]))
    assert migrate.verify(_source(case), folder / "out", **hints).ok
    names = [v.name for v in optim.describe_checkpoint(folder / "out").variables if v.trainable]
    live = {name: tf.Variable(oracle[f"{which}/at_save/{i}"]) for i, name in enumerate(names)}
    stored = {v.name: v.array for v in migrate.read(_source(case), **hints).variables}
    for name, variable in live.items():
        np.testing.assert_array_equal(variable, stored[name].load())
    optimizer = optim.load_checkpoint(folder / "out", live, restore_variables=False)
    variables = list(live.values())
    apply = next_steps.applying(optimizer, variables)
    assert next_steps.error(apply, variables, oracle, 6, prefix=f"{which}/") < next_steps.NEAR


@pytest.mark.parametrize("case", [*SAVED_MODELS, *KERAS])
def test_the_optimizer_of_the_whole_model_goes_on(case: str, tmp_path: Path) -> None:
    _goes_on(case, "generator", tmp_path, None)


@pytest.mark.parametrize("case", SAVED_MODELS)
def test_the_one_within_goes_on_with_its_own_config(case: str, tmp_path: Path) -> None:
    """Both have one learning rate, so that nothing denied the beta_1 of the whole model's."""
    _goes_on(case, "discriminator", tmp_path, OF_DISCRIMINATOR)


@pytest.mark.parametrize("case", SAVED_MODELS)
def test_the_model_within_is_not_written_without_what_is_around_it(case: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="the source does not describe its model"):
        migrate.migrate_checkpoint(_source(case), tmp_path / "model.keras", to="keras", optimizer_path=OF_DISCRIMINATOR)
    assert migrate.migrate_checkpoint(_source(case), tmp_path / "whole.keras", to="keras").fidelity == "exact"


@pytest.mark.parametrize("case", KERAS)
@pytest.mark.usefixtures("loaded_here")
def test_nothing_of_the_one_within_is_taken_for_the_model(case: str, tmp_path: Path) -> None:
    state = migrate.read(_source(case))
    assert len(state.variables) == 8
    assert any("/optimizer/vars/" in name for name in state.unmapped)
    for to, suffix in (("keras", ".keras"), ("tf-keras", ".h5")):
        target = tmp_path / f"model{suffix}"
        assert migrate.migrate_checkpoint(_source(case), target, to=to).fidelity == "exact"
        assert migrate.verify(_source(case), target).ok
