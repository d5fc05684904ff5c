"""Rules of single algorithms that releases changed."""

from __future__ import annotations

from collections.abc import Callable

from migrate.facts.fact import Fact
from migrate.releases.table import Release

OLD, NEW = "old", "new"


def _of_tf_train(since: tuple[int, int]) -> Callable[[Release], str | None]:
    """Return the answer function: OLD for `tf.train` before a release of TensorFlow, NEW from it on."""
    return lambda r: None if not r.is_tf_train else OLD if r.tensorflow < since else NEW


ADADELTA = Fact(
    "new_delta_in_step",
    "By which second slot does AdadeltaOptimizer of tf.train move a variable?",
    _of_tf_train((1, 5)),
    {OLD: "moved variables by the new one", NEW: "moved them by the one before"},
    "run in TF 1.0 and 1.4, 1.5 to 1.8 and from 1.12 on",
)
PROXIMAL_ADAGRAD = Fact(
    "l1_regularization_strength",
    "Does ProximalAdagradOptimizer with l1 keep signs?",
    _of_tf_train((1, 4)),
    {OLD: "lost the sign of a variable, perhaps up to 1.3", NEW: "kept it"},
    "run in TF 1.0 (lost), 1.4, 1.12 and 1.15",
)
FTRL_SHRINKAGE = Fact(
    "l2_shrinkage_regularization_strength",
    "By which formula does FtrlOptimizer of tf.train shrink?",
    _of_tf_train((1, 12)),
    {OLD: "used another formula, perhaps up to 1.11", NEW: "used the one of optim"},
    "run in TF 1.6 and 1.8 (another), 1.12 to 1.14",
)
SCALED, PLAIN = "scaled", "plain"
FTRL_LINEAR = Fact(
    "learning_rate_in_linear",
    "Is the slot `linear` of Ftrl with shrinkage multiplied by the learning rate?",
    lambda r: SCALED if not r.is_standalone and (2, 3) <= r.tensorflow < (2, 6) else PLAIN,
    {SCALED: "kept it multiplied by the learning rate", PLAIN: "kept it as it is"},
    "kernels for dense gradients of TF 2.3 to 2.5",
)
MUON = Fact(
    "aspect_scale",
    "Which rule is Muon's?",
    lambda r: None if not r.is_keras_3 else OLD if r.keras_number < (3, 13) else NEW,
    {NEW: "scaled by rms_rate", OLD: "scaled by √max(1, rows/columns)"},
    "`optimizers/muon.py` of Keras 3.10, 3.12, 3.13 and 3.15",
)
LATE, EARLY = "late", "early"
SCHEDULE_FREE = Fact(
    "late_z",
    "Which z does ScheduleFreeAdamW average?",
    lambda r: None if not r.is_keras_3 else EARLY if r.backend == "jax" else LATE,
    {EARLY: "averaged the old z", LATE: "averaged the new z"},
    "`optimizers/schedule_free_adamw.py` of Keras 3.14 and 3.15, run on each backend",
)
DEFECT, SOUND = "defect", "sound"
ADAMW = Fact(
    "weight_decay",
    "Does AdamW decay weights as it should?",
    lambda r: DEFECT if r.traits.is_trial and r.tensorflow < (2, 10) else SOUND,
    {SOUND: "subtracted weight_decay times the rate", DEFECT: "multiplied weights by weight_decay times the rate"},
    "`optimizers/optimizer_experimental/adamw.py` of TF 2.9 and 2.10",
)
CENTERED = Fact(
    "centered",
    "Does centered RMSprop average gradients?",
    lambda r: DEFECT if r.traits.is_trial else SOUND,
    {SOUND: "averaged gradients", DEFECT: "averaged squared gradients instead"},
    "`optimizers/optimizer_experimental/rmsprop.py` of TF 2.9 and 2.10",
)
ABSENT, PRESENT = "absent", "present"


def _lion(r: Release) -> str | None:
    if r.traits.is_trial or not r.traits.has_averages:
        return None
    return ABSENT if not r.is_keras_3 and r.tensorflow < (2, 13) else PRESENT


LION = Fact(
    "optimizer",
    "Is there a Lion?",
    _lion,
    {ABSENT: "had no Lion", PRESENT: "had Lion"},
    "`keras/optimizers` of TF 2.12 and 2.13",
)


FACTS = (
    ADADELTA, PROXIMAL_ADAGRAD, FTRL_SHRINKAGE, FTRL_LINEAR, MUON, SCHEDULE_FREE, ADAMW, CENTERED, LION,
)  # fmt: skip
