"""tf_keras (Keras 2): its optimizers with and without `mesh=`, and its legacy ones (OptimizerV2, fused kernels)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.peers import keras, tensorflow
from bench.peers.abilities import EVERY_ROW, TOUCHED_ROWS, USUAL_ALGORITHMS, Abilities, same_either_way
from bench.peers.peer import Peer, Session

if TYPE_CHECKING:
    from bench.cases.case import Case

_MODULES = ("tensorflow", "tf_keras")


def _whole(case: Case, *, way: str, legacy: bool = False) -> Session:
    tf = tensorflow.start(case)
    import tf_keras

    way = case.options.where or way
    module = tf_keras.optimizers.legacy if legacy else tf_keras.optimizers
    optimizer = keras.make(module, case)
    if way == "fit":
        return keras.fit_session(case, tf_keras, optimizer)
    variables = tensorflow.whole_variables(case)
    if not legacy:
        optimizer.build(variables)

    def apply(gradients: list, variables: list) -> None:
        optimizer.apply_gradients(zip(gradients, variables, strict=True))

    averages = (lambda: keras.averages(optimizer)) if case.options.ema is not None else None
    called = tf.function(apply) if way == "function" else apply
    return tensorflow.whole_session(case, called, variables, averages)


def _on_mesh(case: Case, *, way: str) -> Session:
    tf = tensorflow.start(case)
    import tf_keras

    mesh = tensorflow.make_mesh(case)
    optimizer = keras.make(tf_keras.optimizers, case, mesh=mesh)

    def make_apply(variables: list[Any]) -> Callable[[list[Any]], Any]:
        optimizer.build(variables)

        def apply(gradients: list) -> None:
            optimizer.apply_gradients(zip(gradients, variables, strict=True))

        return tf.function(apply) if (case.options.where or way) == "function" else apply

    averages = (lambda variables: keras.averages(optimizer)) if case.options.ema is not None else None
    return tensorflow.mesh_session(case, mesh, make_apply, averages)


def _legacy_tables(case: Case) -> Collection[str]:
    if same_either_way(case):
        return (EVERY_ROW, TOUCHED_ROWS)
    return (EVERY_ROW,) if case.algorithm.name in ("adam", "adamax", "nadam") else (TOUCHED_ROWS,)


def _legacy_differs(case: Case) -> str | None:
    inside = case.algorithm.hyperparameters.get("momentum", 0.0) != 0.0
    if case.algorithm.name == "rmsprop" and case.algorithm.hyperparameters["epsilon_inside"] != inside:
        word = str(inside).lower()
        return f"has epsilon_inside={word} only: compare with -o rmsprop:epsilon_inside={word}"
    return None


def _abilities(*ways: str) -> Abilities:
    return Abilities(
        _MODULES,
        "tf_keras",
        algorithms=USUAL_ALGORITHMS - {"lamb", "muon"},
        only=keras.KERAS_ONLY_HAS,
        accumulate=False,
        ways=ways,
    )


_LEGACY = Abilities(
    _MODULES,
    "tf_keras",
    algorithms=USUAL_ALGORITHMS - {"adamw", "lion", "adafactor", "lamb", "muon"},
    only={"nadam": {"schedule_decay": 0.004}, "adagrad": {"epsilon_inside": True}},
    ema=False,
    accumulate=False,
    decays=lambda case: False,
    tables=_legacy_tables,
    ways=("function", "eager", "fit"),
    but=_legacy_differs,
)


def _peer(name: str, summary: str, prepare: Callable[..., Session], has: Abilities, **options: Any) -> Peer:
    on_mesh = prepare is _on_mesh
    prepare_session = partial(prepare, way=has.ways[0], **options)
    note = "" if on_mesh else "no mesh"
    return Peer(name, summary, __name__, has, prepare_session, packages=_MODULES, on_mesh=on_mesh, note=note)


PEERS = (
    _peer("tf_keras-mesh", "tf_keras with mesh=", _on_mesh, _abilities("function", "eager")),
    _peer("tf_keras-mesh-eager", "tf_keras with mesh=, eager", _on_mesh, _abilities("eager")),
    _peer("tf_keras", "tf_keras without a mesh", _whole, _abilities("function", "eager", "fit")),
    _peer("tf_keras-eager", "tf_keras without a mesh, eager", _whole, _abilities("eager")),
    _peer("tf_keras-legacy", "tf_keras legacy optimizers (fused kernels), no mesh", _whole, _LEGACY, legacy=True),
)
