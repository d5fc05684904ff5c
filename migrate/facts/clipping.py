"""What releases do with limits of gradients."""

from __future__ import annotations

from migrate.facts.fact import Fact
from migrate.releases.table import DTENSOR, GRAPH, Release

ALL, EACH = "all", "each"
NORM = Fact(
    "clipnorm",
    "Does `clipnorm` limit one norm over all gradients, or the norm of each?",
    lambda r: ALL if r.is_native and (r.is_standalone or r.tensorflow < (1, 10)) else EACH,
    {ALL: "limited one norm over all gradients", EACH: "limited the norm of each gradient"},
    "`get_gradients` in `optimizers.py` of Keras 1.2 to 2.3 and in the wheels of TF 1.4 to 1.13",
    {ALL: "global_clipnorm", EACH: "clipnorm"},
)
NORM_FIRST, VALUE_FIRST = "norm_first", "value_first"


def _order(r: Release) -> str | None:
    if r.is_native or (r.is_optimizer_v2 and r.tensorflow < (2, 4)):
        return NORM_FIRST
    return VALUE_FIRST if r.is_optimizer_v2 else None


ORDER = Fact(
    "clip_order",
    "Which is applied first if both `clipnorm` and `clipvalue` are set?",
    _order,
    {NORM_FIRST: "clipped the norm first", VALUE_FIRST: "clipped the value first"},
    "`optimizers.py` of Keras 1.2 to TF 1.13, `optimizer_v2.py` of TF 2.0 to 2.15",
    {NORM_FIRST: "clip_order", VALUE_FIRST: "clip_order"},
    "the program decides which is first; dtopt assumes the value",
)
CLIPS, CLIPS_NOT = "clips", "clips not"
IN_FIT = Fact(
    "clipnorm",
    "Does `fit` apply the limits?",
    lambda r: CLIPS_NOT if r.is_optimizer_v2 and r.tensorflow in ((2, 0), (2, 1)) and r.mode != GRAPH else CLIPS,
    {CLIPS_NOT: "ignored limits in `fit`", CLIPS: "applied limits in `fit`"},
    "run in TF 1.15, 2.0.4, 2.1.4, 2.2.3 and 2.3.4; `apply_gradients` applies them from TF 2.4 on",
)
ZEROES, NO_LIMIT = "zeroes", "no limit"
ZERO = Fact(
    "clipnorm",
    "What does a limit of 0 do?",
    lambda r: ZEROES if r.is_optimizer_v2 or r.is_tf_train or (r.is_native and NORM.way(r) == EACH) else NO_LIMIT,
    {NO_LIMIT: "took 0 for no limit", ZEROES: "made every gradient zero"},
    "run with TF 1.9 to 1.15 and 2.0 to 2.6",
)
HAS, LACKS = "has", "lacks"
GLOBAL = Fact(
    "global_clipnorm",
    "Is there a `global_clipnorm`?",
    lambda r: LACKS if r.is_native or (r.is_optimizer_v2 and r.tensorflow < (2, 4)) else HAS,
    {LACKS: "had no `global_clipnorm`", HAS: "had `global_clipnorm`"},
    "`optimizer_v2.py` of TF 2.0 to 2.4",
)
ONE, SEVERAL = "one", "several"
TOGETHER = Fact(
    "clipnorm",
    "How many limits are applied if several are set?",
    lambda r: ONE if r.traits.has_averages else SEVERAL,
    {ONE: "applied one of several limits", SEVERAL: "applied all limits"},
    "`optimizer.py` of Keras 2.9 to 3.15",
)
IGNORES, APPLIES = "ignores", "applies"
OF_DTENSOR = Fact(
    "clipnorm",
    "Do limits and `use_ema` act in an optimizer of DTensor?",
    lambda r: IGNORES if r.mode == DTENSOR else APPLIES,
    {APPLIES: "applied limits and averages", IGNORES: "ignored limits and averages"},
    "run with TF 2.9",
)
FACTS = (NORM, ORDER, IN_FIT, ZERO, GLOBAL, TOGETHER, OF_DTENSOR)
