"""The public optimizer RMSprop; its maths and arguments are in `optim/rules/rmsprop.py`."""

from __future__ import annotations

from optim.optimizers.of_rule import RuleOptimizer
from optim.rules.rmsprop import RMSpropRule


class RMSprop(RuleOptimizer, rule=RMSpropRule):
    """RMSprop (Tieleman & Hinton, 2012), optionally centered (Graves, 2013), optionally with momentum.

    Slots: `velocity`, `momentum` if there is momentum, and `average_gradient` if centered, each shaped like its
      variable.

    By default it computes what Keras computes from 2.11 on; the keyword-only arguments give the rule of any earlier
    release. The only exception is the centered RMSprop of `optimizers.experimental` and of the DTensor class in 2.9 and
    2.10. It averaged squared gradients instead of gradients and wrote the difference back into `velocity`, a defect
    that soon gives NaN. A correct rule cannot use its state, and `dtopt migrate` refuses it.
    """
