"""Modules of optimizer classes, and the generation whose classes they have."""

from __future__ import annotations

from migrate.generations import EXPERIMENTAL, KERAS2, KERAS3, OPTIMIZER, OPTIMIZER_V2, TF1
from migrate.releases import table
from migrate.releases.narrowing import candidates
from migrate.releases.versions import TENSORFLOW, Versions

ADDONS, CONTRIB, KERAS_CONTRIB = "tensorflow_addons.optimizers", "tensorflow.contrib.opt", "keras_contrib.optimizers"
TF_TRAIN = "tensorflow.train"
ALONE = {
    "keras.optimizers.legacy": OPTIMIZER_V2,
    "keras.optimizers.experimental": EXPERIMENTAL,
    "keras.dtensor.experimental.optimizers": EXPERIMENTAL,
    "tensorflow.keras.optimizers.legacy": OPTIMIZER_V2,
    "tensorflow.keras.optimizers.experimental": EXPERIMENTAL,
    "tensorflow.keras.dtensor.experimental.optimizers": EXPERIMENTAL,
    "tf_keras.optimizers": OPTIMIZER,
    "tf_keras.optimizers.legacy": OPTIMIZER_V2,
    "tf_keras.optimizers.experimental": OPTIMIZER,
    TF_TRAIN: TF1,
    CONTRIB: TF1,
    ADDONS: OPTIMIZER_V2,
    KERAS_CONTRIB: KERAS2,
}
"""Modules that have classes of one generation in every release."""

KERAS_3, TF_KERAS, TF_KERAS_LEGACY = "keras3", "tf_keras", "tf_keras.legacy"
MODULE = {
    KERAS_3: "keras.optimizers",
    TF_KERAS: "tf_keras.optimizers",
    TF_KERAS_LEGACY: "tf_keras.optimizers.legacy",
}
"""Families of classes that continue a state -> their module."""
GENERATION = {KERAS_3: KERAS3, TF_KERAS: OPTIMIZER, TF_KERAS_LEGACY: OPTIMIZER_V2}
"""Family -> the generation whose rules and orders it has."""
BY_MODULE = {MODULE[family]: generation for family, generation in GENERATION.items()}
"""Module of a family -> its generation."""
NEWEST = {
    **dict.fromkeys((OPTIMIZER_V2, OPTIMIZER), Versions(table.TENSORFLOWS[-1].keras[0])),
    KERAS3: Versions(table.KERAS_3[-1].version),
}
"""Generation of a family -> its newest release."""
LOADERS = {
    "keras": tuple(r for r in candidates(KERAS3) if r.backend == TENSORFLOW and r.keras_number >= (3, 10)),
    "tf-keras": candidates(OPTIMIZER, Versions("2.15.0")),
}
"""Target -> the releases that load what is written."""
