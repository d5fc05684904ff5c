"""The optimizer's class and config, with the origin of each setting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from migrate.algorithms.spec import Algorithm
from migrate.claims import Origin


@dataclass(frozen=True)
class Configuration:
    """The optimizer's class and its settings. What is learned later makes another configuration.

    Attributes:
      config: settings under Keras's names, with the defaults of the generation.
      origins: of each setting, by the same names.
      wrappers: names of the optimizers around it, the outermost first.
      overrides: what the user sets.
      claims: origins of the class, first, and of options that the source does not name.
      hint: what --optimizer-config has of the optimizer, under Keras's names.
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
        """The class as the source or the user calls it."""
        return str(self.class_origin.value)

    def with_claims(self, *claims: Origin) -> Configuration:
        return replace(self, claims=(*self.claims, *claims))

    def with_origin(self, origin: Origin) -> Configuration:
        """With another origin of a setting, and its value."""
        key = origin.subject
        return replace(self, config={**self.config, key: origin.value}, origins={**self.origins, key: origin})
