"""How Hypothesis draws examples here: the same ones in every run, however busy the machine is."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def drawn(count: int) -> settings:
    """A decorator: so many examples, none of which has to come in time."""
    return settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
