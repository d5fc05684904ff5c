"""Errors of `bench`, all `DtoptError`s."""

from __future__ import annotations

from optim.errors import DtoptError, UnsupportedError


class UnknownNameError(DtoptError, ValueError):
    """A workload, optimizer, peer or layout rule that does not exist; the message lists those that do."""

    exit_code = 2


class OptionError(DtoptError, ValueError):
    """The value of an option cannot be used, such as a mesh `model=0` or more threads than CPUs."""

    exit_code = 2


class NoDeviceError(UnsupportedError):
    """A device that this machine lacks: nothing can be measured."""

    exit_code = 4


class ResultsError(DtoptError, ValueError):
    """A results file is missing, damaged, or has a version that this dtopt does not know."""


class IncomparableError(DtoptError, ValueError):
    """Two results that must not be compared, such as those of different machines."""

    exit_code = 6
