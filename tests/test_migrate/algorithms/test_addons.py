"""Optimizers of other projects: their own next steps taken by `optim`, or the reason why not."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import migrate
import optim
from migrate import algorithms
from migrate.algorithms import addons, keras_config, lazy_rows, wrappers
from migrate.algorithms.arguments import Arguments
from migrate.errors import ContradictionError, DamagedFileError, MissingHintError, StrictError
from migrate.evidence.interpret import interpret
from migrate.readers import tf1_saver
from optim.bytes import protos
from optim.errors import HyperparameterError, UnsupportedError
from tests import wild_table
from tests.alterations.hdf5 import training_config
from tests.helpers import next_steps
from tests.places import CASE_FOLDER, CORPUS, MULTI, WILD
from tests.test_migrate.confirm import confirmed
from tests.test_migrate.graphs.small_graphs import complete

SOURCE = {"h5": "model.h5", "ckpt": "ckpts"}
EXACT = {
    "tf29-g-adamw-h5": {},
    "tf29-g-adamw-ckpt": {},
    "tf29-g-adamw-cosine-h5": {},
    "tf215-g-ranger-h5": {},
    "tf29-g-sgdw-h5": {},
    "tf29-g-moving-average-adam-ckpt": {},
    "tf29-g-lookahead-adam-h5": {},
    "tf29-g-swa-adam-h5": {},
    "tf29-g-distributed-adam-classname-h5": {"overrides": {"class_name": "Adam"}},
}
DOUBTFUL = {
    "tf29-g-distributed-adam-classname-h5": "--set class_name=Adam",
    "tf29-g-hf-adamweightdecay-warmup-h5": "--set 'weight_decay_exclude=[]'",
}


def _case(name: str) -> tuple[str, dict[str, Any], dict[str, Any], Any]:
    document = json.loads((WILD / name / "case.json").read_text())
    hints = {"optimizer_config": document["optimizer_config"]} if document["needs_config"] else {}
    source = str(WILD / name / "source" / SOURCE[name.rpartition("-")[2]])
    return source, hints, document, np.load(WILD / name / "oracle.npz")


@pytest.mark.parametrize("name", EXACT)
def test_the_sources_own_next_steps_are_taken(name: str, tmp_path: Path) -> None:

    source, hints, document, oracle = _case(name)
    report = migrate.migrate_checkpoint(source, tmp_path / "slots", **hints, **EXACT[name])
    assert report.fidelity == "exact", report.reasons
    assert next_steps.of_slots(tmp_path / "slots", oracle, document["n"]) < next_steps.NEAR


def test_settings_of_lookahead_are_read_asked_for_and_compared() -> None:
    case = CORPUS / "extra-tfa19-lookahead-adam-ckpt"
    config = json.loads((case / "case.json").read_text())["optimizer"]["config"]
    source = str(case / "source" / "ckpt-1")

    def read(**changes: Any) -> Any:
        settings = {key: value for key, value in {**config, **changes}.items() if value is not None}
        return migrate.read(source, optimizer_config={"class_name": "Lookahead", "config": settings})

    state = read()
    assert (state.fidelity, state.hyperparameters["lookahead"]["sync_period"]) == ("exact", 3)
    assert set(state.slots) == {"m", "v", "slow"}
    with pytest.raises(ContradictionError, match="sync_period"):
        read(sync_period=4)  # four steps were taken
    assert "the source does not contain" in " ".join(read(slow_step_size=None).reasons)


def _inside_two(
    inner: dict[str, Any], wrapper_names: tuple[str, ...] = ("MovingAverage", "Lookahead")
) -> dict[str, Any]:
    settings = {"MovingAverage": {"average_decay": 0.9}, "Lookahead": {"sync_period": 3, "slow_step_size": 0.5}}
    optimizer = inner
    for name in reversed(wrapper_names):
        optimizer = {"class_name": name, "config": {**settings[name], "optimizer": optimizer}}
    return optimizer


def test_what_is_inside_two_wrappers_of_addons_and_counts_is_refused() -> None:
    """Adam there takes each step as its first, as does a rate that decays; averages inside of Lookahead are others."""
    source = str(CORPUS / "extra-tfa19-nested-rmsprop-ckpt" / "source" / "ckpt-1")
    config = {"learning_rate": 0.01, "rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": False}
    plain = {"class_name": "RMSprop", "config": config}
    decayed = {"class_name": "RMSprop", "config": {**config, "decay": 0.1}}
    state = migrate.read(source, optimizer_config=_inside_two(plain))
    assert (state.iterations, set(state.slots)) == (4, {"velocity", "average", "slow"})
    for optimizer_config, why in [
        (_inside_two(decayed), "MovingAverage of Lookahead of RMSprop: TensorFlow Addons does not count the steps"),
        (
            _inside_two(plain, ("Lookahead", "MovingAverage")),
            "no class of optim averages like a wrapper inside another",
        ),
    ]:
        with pytest.raises(UnsupportedError, match=why):
            migrate.read(source, optimizer_config=optimizer_config)
    overrides = {"class_name": "RMSprop", **config, "average_decay": 0.9}
    ahead = {"sync_period": 3, "slow_step_size": 0.5}
    with pytest.raises(UnsupportedError, match="does not show which wrapper is the outer one"):
        migrate.read(source, overrides={**overrides, "lookahead": ahead})
    adam = {"lookahead": ahead, addons.AVERAGED: 0.9}
    with pytest.raises(UnsupportedError, match="does not count the steps"):
        wrappers.check_nested(_inside_two({"class_name": "Adam", "config": {}}), adam, counts=True)


@pytest.mark.parametrize(
    ("case", "class_name"),
    [
        ("extra-tf115-contrib-lars-saver", "MomentumOptimizer"),
        ("extra-tf115-contrib-nadam-saver", "MomentumOptimizer"),
        ("tf115-train-momentum-nesterov-mlp", "LARSOptimizer"),
        ("tf115-train-momentum-nesterov-mlp", "NadamOptimizer"),
    ],
)
def test_graphs_and_slots_deny_another_class_of_contrib(case: str, class_name: str) -> None:
    folder = CORPUS / case / "source"
    prefix = str(next(folder.glob("*.index"))).removesuffix(".index")
    config = {"learning_rate": 0.01, "momentum": 0.9, "use_nesterov": True, "weight_decay": 0.0, "eeta": 0.1}
    with pytest.raises(ContradictionError):
        migrate.read(prefix, optimizer_config={"class_name": class_name, "config": config})


def test_a_flag_of_its_kernel_tells_contribs_nadam() -> None:
    source = str(CORPUS / "extra-tf115-contrib-nadam-saver" / "source" / "model.ckpt")
    state = migrate.read(source)  # whose names and class say Adam
    assert (state.algorithm, state.hyperparameters["nesterov"], state.fidelity) == ("Adam", True, "exact")
    with pytest.raises(ContradictionError, match="nesterov"):
        migrate.read(source, optimizer_config={"class_name": "AdamOptimizer", "config": {"nesterov": False}})


@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_the_source_does_not_say_is_not_called_exact(name: str, tmp_path: Path) -> None:
    source, hints, _, _ = _case(name)
    report = migrate.migrate_checkpoint(source, tmp_path / "slots", **hints, dry_run=True)
    assert report.fidelity == "approximate"
    assert DOUBTFUL[name] in " ".join(report.reasons)
    with pytest.raises(StrictError):
        migrate.migrate_checkpoint(source, tmp_path / "slots", **hints, strict=True)


def test_decay_apart_from_a_rate_that_changes_goes_into_no_class_of_keras(tmp_path: Path) -> None:
    """`EXACT` takes its next steps in `optim`; Keras's classes multiply the decay by the rate."""
    source, hints, _, _ = _case("tf29-g-adamw-cosine-h5")
    state = migrate.read(source, **hints)
    assert state.hyperparameters["learning_rate_in_weight_decay"] is False
    for to, suffix in (("keras", ".keras"), ("tf-keras", ".h5")):
        with pytest.raises(UnsupportedError, match="does not scale with the learning rate"):
            migrate.migrate_checkpoint(source, tmp_path / f"model{suffix}", to=to, **hints)
    migrate.migrate_checkpoint(source, tmp_path / "slots", **hints)
    compared = migrate.verify(source, tmp_path / "slots", **hints)
    assert compared.ok
    assert compared.parity is not None
    assert compared.parity <= 1


def test_a_schedule_of_weight_decay_is_refused_and_says_what_goes(tmp_path: Path) -> None:
    falling = {"class_name": "PiecewiseConstantDecay", "config": {"boundaries": [3], "values": [1e-3, 1e-4]}}
    source = tmp_path / "model.h5"
    shutil.copy(_case("tf29-g-adamw-h5")[0], source)
    with training_config(source) as training:
        training["optimizer_config"]["config"]["weight_decay"] = falling
    with pytest.raises(UnsupportedError, match="decay follows a schedule, PiecewiseConstantDecay") as refused:
        migrate.read(source)
    assert "--set weight_decay_per_step=VALUE" in str(refused.value)
    last = migrate.read(source, overrides={"weight_decay_per_step": 1e-4})
    assert (last.fidelity, last.hyperparameters["weight_decay"]) == ("exact", pytest.approx(0.01))
    assert migrate.read(source, overrides={"own_rule": True}).fidelity == "approximate"


def test_what_adamweightdecay_of_tf_models_does_not_save_can_be_said(tmp_path: Path) -> None:
    """Its gradients are clipped by the norm of all together, as its message says; the norm of each is another rule."""
    source, hints, document, oracle = _case("tf29-g-tfm-adamw-poly-ckpt")
    assert any("--set global_clipnorm=1.0" in reason for reason in migrate.read(source, **hints).reasons)
    overrides = {"global_clipnorm": 1.0, "weight_decay_exclude": ["LayerNorm", "layer_norm", "bias"]}
    report = migrate.migrate_checkpoint(source, tmp_path / "slots", overrides=overrides, **hints)
    assert report.fidelity == "exact", report.reasons
    assert wild_table.replayed(tmp_path / "slots", document, oracle) <= 1


def test_a_registered_adamweightdecay_is_confirmed_by_its_class(tmp_path: Path) -> None:
    """As autokeras registers that of tf-models: with these answers its own next steps were taken (1.0.20, TF 2.9.3)."""
    source, _, document, oracle = _case("tf29-g-hf-adamweightdecay-warmup-h5")
    shutil.copy(source, tmp_path / "model.h5")
    with training_config(tmp_path / "model.h5") as training:
        training["optimizer_config"]["class_name"] = "Custom>AdamWeightDecay"
    left_out = ["LayerNorm", "layer_norm", "bias"]
    hint = {"class_name": "Custom>AdamWeightDecay", "config": {"exclude_from_weight_decay": left_out}}
    overrides = {"clipnorm": None, "weight_decay_exclude": left_out}
    (reason,) = migrate.read(tmp_path / "model.h5", overrides=overrides).reasons
    assert "--set class_name=AdamWeightDecay" in reason
    overrides = {"clipnorm": None, "class_name": "AdamWeightDecay"}
    report = migrate.migrate_checkpoint(
        tmp_path / "model.h5", tmp_path / "slots", overrides=overrides, optimizer_config=hint
    )
    assert report.fidelity == "exact", report.reasons
    assert wild_table.replayed(tmp_path / "slots", document, oracle) <= 1


@pytest.mark.parametrize("name", ["Yogi", "AdamW"])
def test_a_class_of_addons_is_known_as_keras_215_serializes_it(name: str) -> None:
    """What `tf.keras.optimizers.serialize` gives in TF 2.12 to 2.15, and what is inside a wrapper there."""
    module = f"tensorflow_addons.optimizers.{name.lower()}"
    document = {"module": module, "class_name": name, "config": {}, "registered_name": f"Addons>{name}"}
    assert addons.as_registered(document)["class_name"] == f"Addons>{name}"
    for other in ({"registered_name": f"mine>{name}"}, {"module": "mine.optimizers"}, {"module": None}):
        assert addons.as_registered({**document, **other})["class_name"] == name


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("wild/tf29-g-lookahead-adam-h5", "lookahead"),
        ("wild/tf29-g-swa-adam-h5", "stochastic_average"),
        ("corpus/extra-tfa20-moving-average-clip-h5", "average_decay"),
    ],
)
def test_a_wrapper_that_is_not_called_as_addons_registers_it_may_be_anybodys(
    name: str, option: str, tmp_path: Path
) -> None:
    source = tmp_path / "model.h5"
    shutil.copy(CASE_FOLDER / name / "source" / "model.h5", source)
    right = migrate.read(source)
    assert right.fidelity == "exact", right.reasons
    with training_config(source) as training:
        outer = training["optimizer_config"]
        outer["class_name"] = wrappers.plain(outer["class_name"])
    (reason,) = migrate.read(source).reasons
    assert f"calls the wrapper of the optimizer {outer['class_name']};" in reason
    overrides = confirmed(source)
    state = migrate.read(source, overrides=overrides)
    assert ([*overrides], state.fidelity, state.hyperparameters) == ([option], "exact", right.hyperparameters)


def test_slots_of_a_wrapper_that_is_not_known_are_said_to_be_its(tmp_path: Path) -> None:
    """As those of GradientAccumulateOptimizer are, in which gradients wait: no optimizer in it has them."""
    source = tmp_path / "model.h5"
    shutil.copy(WILD / "tf29-g-lookahead-adam-h5" / "source" / "model.h5", source)
    with training_config(source) as training:
        training["optimizer_config"]["class_name"] = "gradient-accumulator>GradientAccumulateOptimizer"
    with h5py.File(source, "r+") as file:
        group = file["optimizer_weights"]
        kept = [name for name in group.attrs["weight_names"] if name.endswith(("/slow:0", "/iter:0"))]
        for name in (name for name in group.attrs["weight_names"] if name not in kept):
            del group[name]
        group.attrs["weight_names"] = kept
    with pytest.raises(UnsupportedError, match=r"^GradientAccumulateOptimizer wraps the optimizer and .* restart"):
        migrate.read(source)


@pytest.mark.parametrize(("name", "decayed"), [("tf29-g-adamw-h5", "AdamW"), ("tf29-g-sgdw-h5", "SGDW")])
def test_a_class_that_addons_made_of_another_is_known_by_its_config(name: str, decayed: str, tmp_path: Path) -> None:
    """`extend_with_decoupled_weight_decay` calls all that it makes alike; run with Adam and SGD in TF 2.7."""
    reference = migrate.read(_case(name)[0])
    source = tmp_path / "model.h5"
    shutil.copy(_case(name)[0], source)
    with training_config(source) as training:
        training["optimizer_config"]["class_name"] = "OptimizerWithDecoupledWeightDecay"
    doubted = migrate.read(source)
    assert any(reason.endswith(f"To confirm: --set class_name={decayed}") for reason in doubted.reasons)
    state = migrate.read(source, overrides={"class_name": decayed})
    assert (state.fidelity, state.algorithm, state.hyperparameters) == (
        "exact",
        reference.algorithm,
        reference.hyperparameters,
    )


@pytest.mark.parametrize(
    ("config", "taken"),
    [
        ({"rho": 0.9, "momentum": 0.9, "centered": False, "epsilon": 1e-7}, "RMSprop"),
        ({"rho": 0.9, "epsilon": 1e-7}, "Adadelta"),
        ({"initial_accumulator_value": 0.1, "epsilon": 1e-7}, "Adagrad"),
        ({"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "name": "Adamax"}, "Adamax"),
        ({"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "name": "Nadam"}, "Nadam"),
        ({"initial_accumulator_value": 0.1, "learning_rate_power": -0.5, "beta": 0.0}, "Ftrl"),
    ],
)
def test_which_class_addons_let_decay_its_config_tells(config: dict[str, Any], taken: str) -> None:
    name, settings = addons.as_keras(addons.EXTENDED, {**config, "weight_decay": 0.1}, "optimizer_v2", True)
    assert (name, settings.get(addons.PER_STEP)) == (taken, 0.1)
    _, confirm = addons.doubt(addons.EXTENDED, "optimizer_v2", True, name)
    assert confirm == f"--set class_name={taken}"


def test_of_two_classes_that_addons_let_decay_only_their_name_tells(tmp_path: Path) -> None:
    source = tmp_path / "model.h5"
    shutil.copy(CORPUS / "extra-tfa19-extended-nadam-h5" / "source" / "model.h5", source)
    right = migrate.read(source, overrides={"class_name": "Nadam"})
    with training_config(source) as training:
        training["optimizer_config"]["config"]["name"] = "Mine"
    with pytest.raises(MissingHintError, match="choose with --set class_name=Adamax or --set class_name=Nadam"):
        migrate.read(source)
    with pytest.raises(ContradictionError, match="momentum_cache, which Adamax does not have"):
        migrate.read(source, overrides={"class_name": "Adamax"})
    state = migrate.read(source, overrides={"class_name": "Nadam"})
    assert state.hyperparameters == right.hyperparameters | {"name": "Mine"}


def test_what_addons_let_decay_is_confirmed_beside_its_config(tmp_path: Path) -> None:
    folder = CORPUS / "extra-tfa19-extended-adamax-ckpt"
    document = json.loads((folder / "case.json").read_text())
    config = {"class_name": addons.EXTENDED, "config": document["optimizer"]["config"]}
    hints: dict[str, Any] = {"optimizer_config": config, "overrides": {"class_name": "Adamax"}}
    report = migrate.migrate_checkpoint(folder / "source" / "ckpt-1", tmp_path / "slots", **hints)
    assert report.fidelity == "exact", report.reasons
    assert next_steps.of_slots(tmp_path / "slots", np.load(folder / "oracle.npz"), document["n"]) < next_steps.NEAR


@pytest.mark.parametrize("name", ["SGD", "RMSprop", "Adagrad", "Adam"])
def test_rows_that_did_not_decay_are_told_of_every_class(name: str) -> None:
    """Addons decays the rows that a gradient names; run with RMSprop, Adagrad and Adam in 0.19 on TF 2.9."""
    arguments = Arguments({"weight_decay": 0.1})
    config = {addons.PER_STEP: 0.1, "momentum": 0.0}
    lazy_rows.put_in(arguments, config, algorithms.find(name), "optimizer_v2", ["table/embeddings", "dense/kernel"])
    reason = arguments.origins[keras_config.LAZY_ROWS].doubt
    assert reason.startswith("table/embeddings: rows without a sparse gradient do not decay")


def test_a_class_of_optim_whose_state_is_not_read_is_not_called_unknown() -> None:
    with pytest.raises(UnsupportedError, match=r"cannot read the state of 'Adan'.*optim\.Adan") as refused:
        algorithms.find("Adan")
    assert "own_rule" not in str(refused.value)


PARTS = {
    "base": {"class_name": "SGD", "config": {"learning_rate": 0.05, "momentum": 0.9, "nesterov": False, "decay": 0.0}},
    "head": {"class_name": "Adam", "config": {"learning_rate": 0.01, "beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}},
}


@pytest.mark.parametrize(("file", "hints"), [("model.h5", {}), ("ckpt-1", {"optimizer_config": {}})])
def test_multioptimizer_is_refused_as_it_saves_no_slots(file: str, hints: dict[str, Any]) -> None:
    hints = {key: {"class_name": "MultiOptimizer", "config": {}} for key in hints}
    with pytest.raises(UnsupportedError, match=r"no file contains the slots.*--optimizer base") as refused:
        migrate.read(MULTI / "source" / file, **hints)
    assert "own_rule" not in str(refused.value)


def test_the_optimizers_of_multioptimizer_go_on_where_they_were_saved_by_name(tmp_path: Path) -> None:
    import tensorflow as tf

    oracle, source = np.load(MULTI / "oracle.npz"), MULTI / "source" / "parts-1"
    names = [str(name) for name in oracle["names"]]
    live = {name: tf.Variable(oracle[f"at_save/{i}"]) for i, name in enumerate(names)}
    optimizers = []
    for part, config in PARTS.items():
        hints: dict[str, Any] = {"optimizer_config": config, "optimizer_path": part}
        known = confirmed(str(source), **hints)
        report = migrate.migrate_checkpoint(source, tmp_path / part, overrides=known, **hints)
        assert report.fidelity == "exact", report.reasons
        variables = {name: live[name] for name in names if name.startswith(part)}
        optimizers.append((optim.load_checkpoint(tmp_path / part, variables, restore_variables=False), variables))
    for optimizer, variables in optimizers:
        apply = next_steps.applying(optimizer, list(variables.values()))
        assert (
            next_steps.error(apply, list(variables.values()), oracle, 6, map(names.index, variables)) < next_steps.NEAR
        )


def test_the_advice_for_a_class_that_keras_lacks_works_as_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    monkeypatch.delitem(sys.modules, "tf_keras", raising=False)  # as in a program with one of the two
    source = CORPUS / "extra-tfa19-novograd-mlp-h5" / "source" / "model.h5"
    with pytest.raises(UnsupportedError, match="has no NovoGrad") as refused:
        migrate.migrate_checkpoint(source, tmp_path / "model.keras", to="keras")
    compiled, call = re.findall(r"compiled with (.*) in today's code as `model`: (.*)", str(refused.value))[0]
    shapes = [v.shape for v in migrate.read(source).variables if v.name.endswith("kernel")]
    inputs = keras.Input((shapes[0][0],))
    model = keras.Sequential([inputs, *(keras.layers.Dense(shape[1]) for shape in shapes)])
    names = {"optim": optim, "keras": keras, "migrate": migrate, "model": model}
    model.compile(eval(compiled, names), "mse")
    report = eval(call, names)
    assert report.optimizer == "NovoGrad"
    assert report.slots == 2 * len(model.weights)
    assert set(report.reasons) <= set(migrate.read(source).reasons)


def _lars(**more: Any) -> Any:
    known = {"class_name": "LARS", "clipnorm": None, "weight_decay_exclude": ["bias"], **more}
    return migrate.read(CORPUS / "extra-tfm29-lars-h5" / "source" / "model.h5", overrides=known)


def test_what_lars_leaves_out_is_asked_for_and_left_out_of_both_unless_told() -> None:
    state = migrate.read(CORPUS / "extra-tfm29-lars-h5" / "source" / "model.h5")
    assert state.fidelity == "approximate"
    for asked in (
        "class_name=LARS",
        "clipnorm=none",
        "weight_decay_exclude=none",
        "exclude_from_layer_adaptation=none",
    ):
        assert f"--set {asked}" in " ".join(state.reasons)
    assert _lars().fidelity == "approximate"
    state = _lars(exclude_from_layer_adaptation=None)  # as its argument None, which means the other list
    assert (state.fidelity, state.hyperparameters["exclude_from_layer_adaptation"]) == ("exact", ["bias"])
    with pytest.raises(UnsupportedError, match="norm of its momentum"):
        _lars(classic_momentum=False)


@pytest.mark.parametrize("name", ["extra-tfm29-lars-h5", "extra-tfa19-novograd-amsgrad-h5"])
def test_a_list_holds_what_the_release_itself_had(name: str, tmp_path: Path) -> None:
    """The momentum of LARS has the other sign in `optim`, and vhat of NovoGrad is one number there."""
    migrate.migrate_checkpoint(CORPUS / name / "source" / "model.h5", tmp_path / "list.npz", to="list")
    with h5py.File(CORPUS / name / "source" / "model.h5") as file:
        group = file["optimizer_weights"]
        want = [np.asarray(group[key]) for key in group.attrs["weight_names"]]
    archive = np.load(tmp_path / "list.npz")
    got = [archive[key] for key in archive.files]
    assert len(got) == len(want)
    for mine, theirs in zip(got, want, strict=True):
        assert mine.shape == theirs.shape
        np.testing.assert_array_equal(mine, theirs)


def test_a_vhat_of_several_numbers_is_damaged(tmp_path: Path) -> None:
    import h5py

    shutil.copy(CORPUS / "extra-tfa19-novograd-amsgrad-h5" / "source" / "model.h5", tmp_path / "model.h5")
    with h5py.File(tmp_path / "model.h5", "r+") as file:
        group = file["optimizer_weights"]
        key = next(k for k in group.attrs["weight_names"] if "kernel/vhat" in k)
        group[key][0] = group[key][0] * 2
    with pytest.raises(DamagedFileError, match="one number in every element"):
        migrate.migrate_checkpoint(tmp_path / "model.h5", tmp_path / "slots")


def test_adamax_of_contrib_is_in_its_graph_and_rows_that_it_moves_alone_are_doubted(tmp_path: Path) -> None:
    source = CORPUS / "extra-tf115-contrib-adamax-saver" / "source"
    state = migrate.read(source / "model.ckpt")
    assert (state.algorithm, state.iterations, state.fidelity) == ("Adamax", 4, "exact")
    shutil.copytree(source, tmp_path / "copy")
    meta = tmp_path / "copy" / "model.ckpt.meta"
    graph = protos.SaverMetaGraph.FromString(meta.read_bytes())
    owner = "net/hidden/kernel"
    graph.graph_def.node.add(name=f"AdaMax/update_{owner}/ScatterAdd", op="ScatterAdd", input=[owner, "rows", "by"])
    complete(graph.graph_def)
    meta.write_bytes(graph.SerializeToString())
    assert "changes only the rows of net/hidden/kernel" in " ".join(migrate.read(meta.with_suffix("")).reasons)


def test_proximal_adagrad_of_the_first_releases_lost_signs() -> None:
    """With l1 a variable of -0.3 was positive after a step of TF 1.0.1; 1.4.1, 1.12.3 and 1.15.5 take the paper's."""
    optimizer_config = {
        "class_name": "ProximalAdagradOptimizer",
        "config": {"learning_rate": 0.05, "l1_regularization_strength": 0.01},
    }
    stored = tf1_saver.read(str(CORPUS / "extra-tf115-proximal-adagrad-saver" / "source" / "model.ckpt"))
    old = replace(stored, versions=replace(stored.versions, tensorflow="1.0.1"), graph_config=None)
    doubts = [o for o in interpret(old, optimizer_config=optimizer_config).origins if "TF 1.0" in o.doubt]
    assert [o.confirm for o in doubts] == ["--set l1_regularization_strength=0.01"]
    new = replace(stored, versions=replace(stored.versions, tensorflow="1.4.1"), graph_config=None)
    assert not any("TF 1.0" in o.doubt for o in interpret(new, optimizer_config=optimizer_config).origins)


@pytest.mark.parametrize("name", ["rmsprop", "ftrl", "nadam"])
def test_an_extended_class_that_does_not_say_its_decay_is_another(name: str, tmp_path: Path) -> None:
    """Without it the class was taken for Keras's, and exact once that was confirmed."""
    source = tmp_path / "model.h5"
    shutil.copy(CORPUS / f"extra-tfa19-extended-{name}-h5" / "source" / "model.h5", source)
    confirmation = confirmed(source)
    with training_config(source) as training:
        del training["optimizer_config"]["config"]["weight_decay"]
    for overrides in ({}, confirmation):
        with pytest.raises(UnsupportedError, match=r"without weight_decay in its config, .* --set own_rule=true"):
            migrate.read(source, overrides=overrides)
    assert migrate.read(source, overrides={"own_rule": True}).fidelity == "approximate"


def test_cocob_takes_no_learning_rate_from_a_hint() -> None:
    """The release has none, and `optim`'s would multiply its steps."""
    source = CORPUS / "extra-tfa19-cocob-h5" / "source" / "model.h5"
    hint = {"class_name": "COCOB", "config": {"learning_rate": 0.01}}
    with pytest.raises(HyperparameterError, match="COCOB of generation optimizer_v2 does not have this argument"):
        migrate.read(source, optimizer_config=hint)
    hint["config"] = {"learning_rate": 1.0}
    assert migrate.read(source, optimizer_config=hint).hyperparameters["learning_rate"] == 1.0


def test_a_learning_rate_that_cocob_has_not_is_doubted(tmp_path: Path) -> None:
    """It was exact, 2e4 times what rounding explains off."""
    source = tmp_path / "model.h5"
    shutil.copy(CORPUS / "extra-tfa19-cocob-h5" / "source" / "model.h5", source)
    with training_config(source) as training:
        training["optimizer_config"]["config"]["learning_rate"] = 0.5
    assert "COCOB of that release does not have: learning_rate = 0.5" in " ".join(migrate.read(source).reasons)
