"""Decide which classes are Keras's own: a custom class may have the same name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migrate.algorithms import addons, foreign
from migrate.generations import traits
from optim.errors import UnsupportedError

STOCK_PACKAGES = ("", "Custom")
"""Packages before `>` in a class name. tf.keras 2.11 and later write `Custom>Adam` for their own classes."""
STOCK_MODULES = (
    "keras.optimizers",
    "tf_keras.optimizers",
    "keras.src.optimizers",
    "tf_keras.src.optimizers",
    "keras.src.backend.torch.optimizers",
    *(f"{home}.mixed_precision" for home in ("keras", "tf_keras", "keras.src", "tf_keras.src")),
)
"""Modules of Keras's own classes.

Keras 3 on PyTorch has custom subclasses for nine optimizers, with the same rules (3.0.0 to 3.15.0 compared).
"""


def check(document: Mapping[str, Any], generation: str | None) -> None:
    """Refuse a custom class that has the name of one of Keras's.

    Args:
      document: of the optimizer, with class_name and config.
      generation: of the source, if its format distinguishes classes only by their packages.

    Raises:
      UnsupportedError: with the name under which the class is registered.
    """
    class_name = str(document.get("class_name") or "")
    stock_package = traits(generation).own_package
    package, _, plain = class_name.rpartition(">")
    registered, module = document.get("registered_name"), document.get("module")
    if addons.is_known(class_name) or (package == "Custom" and plain in addons.OTHERS):
        return
    other = package not in STOCK_PACKAGES or (stock_package not in (None, package) and "module" not in document)
    if isinstance(registered, str) and registered:
        other = other or registered.rpartition(">")[0] not in STOCK_PACKAGES
    if isinstance(module, str) and module:
        other = other or not any(module == m or module.startswith(f"{m}.") for m in STOCK_MODULES)
    if "registered_name" in document and module is None:
        other = True  # Keras writes module: null for registered classes, and its own module for others
    if other:
        registration = registered or (f"{module}.{plain}" if module else class_name)
        raise UnsupportedError(
            f"the optimizer is {registration!r}, which is not a class of Keras, although it may have the name of one:"
            f" its rule is not known here, and its state is not migrated under another name; {foreign.HOW}"
        )
