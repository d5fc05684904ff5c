"""Find libraries of the kernel, or compile them: now, or in the background while steps run without them."""

from __future__ import annotations

import logging
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from optim.native import build, compiling
from optim.native.compiling import BuildError, Recipe
from optim.native.mode import VARIABLE, mode

_log = logging.getLogger("optim")


class Provider:
    """The libraries that one framework's steps cannot use, and those being compiled for them.

    Args:
      framework: its ops run the steps while there is no library.
    """

    def __init__(self, framework: str):
        self.lock = threading.RLock()
        self._framework = framework
        self._failed: dict[str, str] = {}
        """Why there is no build, by the recipe's key."""
        self._building: set[str] = set()

    def forget_failures(self) -> None:
        """Try again what failed: missing files may exist now."""
        self._failed.clear()

    def paths(self, recipes: Sequence[Recipe], *, waits: bool | None = None) -> list[Path]:
        """Return the libraries of these recipes; compile missing ones first.

        Args:
          waits: whether to wait for the compiler; None decides by DTOPT_KERNELS.

        Raises:
          BuildError: why that is impossible, or not done yet.
        """
        with self.lock:
            for recipe in recipes:
                if recipe.key in self._failed:
                    raise BuildError(self._failed[recipe.key])
            missing = [recipe for recipe in recipes if build.find(recipe) is None]
            if missing and not (mode() == "build" if waits is None else waits):
                raise self._start(missing)
            try:
                for recipe in missing:
                    compiling.compile_into(recipe, build.cached(recipe))
            except BuildError as error:
                raise self.refuse(recipes, str(error)) from None
            return [path for path in map(build.find, recipes) if path is not None]

    def refuse(self, recipes: Sequence[Recipe], reason: str) -> BuildError:
        """Remember why these cannot be used, warn once, and return the error."""
        _log.warning("dtopt's update kernel is not used, steps run on %s's ops: %s", self._framework, reason)
        self._failed.update({recipe.key: reason for recipe in recipes})
        return BuildError(reason)

    def _start(self, missing: Sequence[Recipe]) -> BuildError:
        """Let another process compile libraries; warn once."""
        pending = BuildError("it is being compiled in the background")
        new = [recipe for recipe in missing if recipe.key not in self._building]
        if not new:
            return pending
        try:
            compiling.compiler()
            process = compiling.start([(recipe, build.cached(recipe)) for recipe in new])
        except (BuildError, OSError) as error:
            return self.refuse(new, str(error))
        self._building.update(recipe.key for recipe in new)
        what = "a rule's kernel" if new[0].name == "rule" else "dtopt's update kernel"
        _log.warning(
            "compiling %s in the background, once, about half a minute; until then steps run on %s's ops"
            " (%s=off: always)",
            what,
            self._framework,
            VARIABLE,
        )
        threading.Thread(target=self._wait, args=(process, new), daemon=True, name="optim-compiling").start()
        return pending

    def _wait(self, process: subprocess.Popen[str], recipes: Sequence[Recipe]) -> None:
        assert process.stderr is not None
        output = process.stderr.read()
        failed = process.wait() != 0
        with self.lock:
            self._building.difference_update(recipe.key for recipe in recipes)
            if failed:
                self.refuse(recipes, output.strip() or "the compiler was stopped")
