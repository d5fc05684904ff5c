"""What releases do differently: one row per question, with the answer of each release.

A source has a set of releases that can have written it (`releases.narrowing.candidates`). If all of them agree, the
answer is certain. If they do not, that is a warning, and `Fact.warning` writes it from the row.
"""

from migrate.facts import clipping, counter, layers, lists, rows, rules, steps

EVERY = (*clipping.FACTS, *counter.FACTS, *layers.FACTS, *lists.FACTS, *rows.FACTS, *rules.FACTS, *steps.FACTS)
