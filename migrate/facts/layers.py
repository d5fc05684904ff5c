"""What the same layers and losses do differently while a model trains."""

from __future__ import annotations

from collections.abc import Callable

from migrate.facts.fact import Fact
from migrate.releases.table import NEVER, Release
from migrate.releases.versions import Number

LEAST_EPSILON = 1.001e-5
"""The least epsilon of a fused batch normalization.

TensorFlow before 2.12 raises a smaller one to it if it normalizes a batch of images in one op (`fused_batch_norm` in
`nn_impl.py` of 2.11.1; no longer in 2.12.0).
"""
SOURCE = (
    "run with one feature per model on Keras 2.2.5 and 2.3.1, TF 2.4, 2.9 and 2.15, tf_keras 2.21 and ten releases of"
    " Keras 3.0 to 3.15; releases between them by their files"
)


def _fact(question: str, way: Callable[[Release], str], *answers: str) -> Fact:
    return Fact("model", question, way, {answer: answer for answer in answers}, SOURCE)


def _since(
    question: str, form: str, before: str, after: str, tf: Number = NEVER, keras3: Number = (3,), alone: bool = False
) -> Fact:
    """Return a row with one change: the texts in `form` before and after it. Other arguments as of `Release.since`."""
    answers = form.format(before), form.format(after)
    return _fact(question, lambda r: answers[r.since(tf, keras3, alone)], *answers)


_STEPS = tuple(
    f"averages the loss over {which}" for which in ("all steps, masked ones as 0", "the steps that are not masked")
)
LOSS = _fact(
    "Over which steps is the mean of a masked loss?",
    lambda r: _STEPS[r.since((2, 10), alone=r.keras_number < (2, 3))],
    *_STEPS,
)
_ANY, _ALL, DROPS = "masks what any input masks", "masks what all inputs mask", "drops masks"
PASSES_ON = "passes masks on"
MERGED = _fact(
    "What does a layer that merges its inputs mask?",
    lambda r: _ANY if not r.is_keras_3 else _ALL if r.keras_number >= (3, 4) else DROPS,
    *(_ANY, DROPS, _ALL),
)
HANDED = _fact(
    "Does a nested model pass masks on?",
    lambda r: DROPS if r.since() and not r.since(keras3=(3, 4)) else PASSES_ON,
    *(DROPS, PASSES_ON),
)
VALUED = _since("Are masked values of inputs used?", "{} masked values of its inputs", "uses", "ignores", keras3=(3, 4))
_LEARNS, _LEARNS_NOT = "learns from rows that are fully masked", "learns nothing from rows that are fully masked"
_NO_HEED, _HEEDS = "ignores masks of its inputs", "uses masks of its inputs"
_TAKES_OFF, _TAKES_OFF_TOO = (f"{_HEEDS}, removes them, and {learns}" for learns in (_LEARNS, _LEARNS_NOT))


def _attends(since: Number) -> Callable[[Release], str]:
    def way(r: Release) -> str:
        if r.since():
            return _TAKES_OFF_TOO if r.since(keras3=since) else _TAKES_OFF
        return _HEEDS if r.since((2, 10)) else _NO_HEED

    return way


_ATTENTION = "Does MultiHeadAttention {} use masks of its inputs?"
_GIVEN = "Does MultiHeadAttention {} learn from rows that are masked whole?"
WITHOUT, WITH = "without dropout", "with dropout"
ATTENTION = {
    kind: _fact(_ATTENTION.format(kind), _attends(since), _NO_HEED, _HEEDS, _TAKES_OFF, _TAKES_OFF_TOO)
    for kind, since in ((WITHOUT, (3, 7)), (WITH, (3, 10)))
}
GIVEN = {
    kind: _since(_GIVEN.format(kind), "{}", _LEARNS, _LEARNS_NOT, keras3=since)
    for kind, since in ((WITHOUT, (3, 7)), (WITH, (3, 10)))
}
MEASURED = _since(
    "Do masked steps count in BatchNormalization?",
    "{} its mean and variance",
    "counts masked steps in",
    "leaves masked steps out of",
    tf=(2, 12),
)
_TO_LAYER = "passes no masks to its inner layer"
_AT_ONCE, _EACH_STEP = (f"passes masks to its inner layer {when}" for when in ("for all steps at once", "at each step"))
DISTRIBUTED = _fact(
    "Which masks does TimeDistributed pass to its inner layer?",
    lambda r: _TO_LAYER if r.is_before_tf_keras and r.keras_number < (2,) else _EACH_STEP if r.since() else _AT_ONCE,
    *(_TO_LAYER, _AT_ONCE, _EACH_STEP),
)
PASSED = _since("Does a layer without weights pass masks on?", "{}", DROPS, PASSES_ON)
_MASKS, _MASKS_TOO = (f"masks its values, and {learns}" for learns in (_LEARNS, _LEARNS_NOT))
SOFTMAX = _fact(
    "Does Softmax mask its values?",
    lambda r: (_MASKS_TOO if r.since(keras3=(3, 10)) else _MASKS) if r.since((2, 4)) else DROPS,
    *(DROPS, _MASKS, _MASKS_TOO),
)
GROUPED = _since(
    "Does GroupNormalization take masks of steps?",
    "{}",
    "accepts no mask of steps",
    "normalizes masked steps like others",
)
STATED = _since(  # `__call__` of `layer.py` 3.0 to 3.15 passes a mask to a layer that gets a single tensor
    "Are masks used if an initial state is given?", "{} masks if it gets an initial state", "uses", "ignores"
)
RELU = _since("Does ReLU pass masks on?", "{}", DROPS, PASSES_ON, tf=(2, 6), alone=True)
HARD_SIGMOID = _since(
    "Which function is hard_sigmoid?", "computes hard_sigmoid as min(max(x/{} + 1/2, 0), 1)", "5", "6"
)
GATES = _since(
    "Which inputs does `dropout` of an LSTM drop?",
    "drops out inputs of {}",
    "each gate separately",
    "all gates together",
)
STATES = _since(
    "Which inputs and states does `recurrent_dropout` of an LSTM drop?",
    "drops out inputs and states of {}",
    "all gates together",
    "each gate separately",
    tf=(2, 1),
)
TRAINING = _since("Does training=False in a call act?", "{} training=False in a call", "applies", "ignores")
EACH_STEP = _since(
    "What does BatchNormalization in a TimeDistributed normalize?",
    "normalizes {}",
    "all steps together",
    "each step alone",
)
FROZEN = _since(
    "By what does a frozen BatchNormalization normalize?",
    "normalizes by {} while frozen",
    "each batch",
    "its moving statistics",
    tf=(2, 3),
)
DILATED = _since(
    "Where does a dilated transposed convolution run?",
    "runs a dilated transposed convolution {}",
    "on CPUs too",
    "on GPUs only, by TensorFlow",
)
EPSILON = _since(
    "Which epsilon does BatchNormalization take?",
    f"{{}} an epsilon below {LEAST_EPSILON}",
    "raises, for images,",
    "uses",
    tf=(2,),
)
ACTIVITY = _since(
    "Are activity regularizers divided by the size of a batch?",
    "{} activity regularizers by the size of a batch",
    "does not divide",
    "divides",
    tf=(2, 2, 4),
    keras3=(3, 14),
)
ACTIVITY_IN = _since(
    "Does TimeDistributed add the activity regularizer of its inner layer?",
    "{} the activity regularizer of its inner layer",
    "adds",
    "leaves out",
)
ACTIVITY_OF = _since(
    "Whose activity is regularized in MultiHeadAttention?", "regularizes the activity of its {}", "output", "parts"
)
REGULARIZED = _since(
    "Do regularizers of frozen layers add to the loss?",
    "{} the loss while frozen",
    "adds its regularizers to",
    "leaves its regularizers out of",
)
_ONCE = "once"


def _adds(what: str, how: str, way: Callable[[Release], bool]) -> Fact:
    """Return the row on how often something adds its regularizers; `way`: whether a release does so as `how`."""
    answers = [f"adds the regularizers of a {what} {often}" for often in (how, _ONCE)]
    question = f"How often are the regularizers of a {what} added to the loss?"
    source = (
        "run on Keras 1.2.2, 2.0.8, 2.1.3, 2.1.4 and 2.2.4, tf.keras of TF 1.4, 1.5, 1.6, 1.7, 1.8, 1.15, 2.4 and 2.15"
        " and Keras 3.8, with models called up to three times"
    )
    return Fact("model", question, lambda r: answers[not way(r)], {answer: answer for answer in answers}, source)


def _is_repeating(r: Release) -> bool:
    return bool(r.keras_number) and r.keras_number < (2, 1, 4)


WITHIN = _adds("model that is called several times, or is in a nested one,", "for each call", _is_repeating)
SHARED = _adds(
    "layer that is called several times", "for each call", lambda r: _is_repeating(r) and not r.is_before_tf_keras
)
MADE = _adds(
    "nested graph of layers",
    "also for its making",
    lambda r: not r.is_before_tf_keras and (2, 1, 2) <= r.keras_number < (2, 1, 4),
)
ORTHOGONAL = _since(
    "What does OrthogonalRegularizer sum?",
    "sums {} in its regularizer",
    "products with their signs",
    "the sizes of products",
    tf=(2, 10),
)
FACTS = (
    *(LOSS, MERGED, HANDED, VALUED, *ATTENTION.values(), *GIVEN.values(), MEASURED, DISTRIBUTED, PASSED, SOFTMAX),
    *(GROUPED, STATED, RELU, HARD_SIGMOID, GATES, STATES, TRAINING, EACH_STEP, FROZEN, DILATED, EPSILON, ACTIVITY),
    *(ACTIVITY_IN, ACTIVITY_OF, REGULARIZED, WITHIN, SHARED, MADE, ORTHOGONAL),
)
