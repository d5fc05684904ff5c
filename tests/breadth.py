"""Which parameters of a test `make test` leaves to `make test-all`."""

from __future__ import annotations

from typing import Any

import pytest


def broad(*values: Any) -> Any:
    """Parameters that only broaden what the test's others show."""
    return pytest.param(*values, marks=pytest.mark.breadth)
