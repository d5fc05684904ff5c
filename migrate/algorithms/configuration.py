"""The optimizer's class and config, with the origin of each setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from migrate.algorithms.spec import Algorithm
from migrate.claims import Origin


@dataclass(frozen=True)
class Configuration:
    """The optimizer's class and its settings. What a later step learns makes a new configuration.

    Attributes:
      config: settings under Keras's names, with the defaults of the generation.
      origins: setting, by the same names -> its origin.
      wrappers: names of the optimizers around it, the outermost first.
      overrides: what the user sets.
      claims: origin of the class, first, and origins of options that the source does not name.
      hint: the optimizer's settings in --optimizer-config, under Keras's names.
    """

    algorithm: Algorithm
    config: Mapping[str, Any]
    origins: Mapping[str, Origin]
    wrappers: tuple[str, ...] = ()
    overrides: Mapping[str, Any] = field(default_factory=dict)
    claims: tuple[Origin, ...] = ()
    hint: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def class_origin(self) -> Origin:
        return self.claims[0]

    @property
    def called(self) -> str:
        """The class name that the source or the user gives."""
        return str(self.class_origin.value)

    def with_claims(self, *claims: Origin) -> Configuration:
        return replace(self, claims=(*self.claims, *claims))

    def with_origin(self, origin: Origin) -> Configuration:
        """Return the configuration with another origin and value of a setting."""
        key = origin.subject
        return replace(self, config={**self.config, key: origin.value}, origins={**self.origins, key: origin})
