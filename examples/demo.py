"""`make demo`: what `dtopt demo` writes is inspected, migrated, verified and continued, in Keras 3 and on a mesh; then
optimizers are measured. Every command is shown before it runs, so that it can be repeated by hand."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASE = ROOT / "tests" / "fixtures" / "cases" / "corpus" / "keras231-adam-amsgrad-mlp"
"""Where keras231.h5 is from; with what Keras 2.3.1 did next."""


def run(*command: str, folder: str) -> None:
    """Show a command and run it; the demo ends where one fails."""
    shown = shlex.join(command)
    print(f"\n\033[1m$ {shown}\033[0m" if sys.stdout.isatty() else f"\n$ {shown}", flush=True)
    programs = {"python": sys.executable, "dtopt": str(Path(sys.executable).with_name("dtopt"))}
    # TensorFlow writes start-up messages straight to stderr; they are shown only if something went wrong.
    stderr = subprocess.PIPE if command[0] == "python" else None
    result = subprocess.run([programs[command[0]], *command[1:]], cwd=folder, check=False, stderr=stderr)
    if result.returncode:
        sys.stderr.write((result.stderr or b"").decode(errors="replace"))
        sys.exit(f"that command failed with exit code {result.returncode}")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="dtopt-demo-") as folder:
        run("dtopt", "demo", "demo", folder=folder)
        print("\n==== from TensorFlow 1.15 to Keras 3")
        run("dtopt", "migrate", "inspect", "demo/old.h5", folder=folder)
        run("dtopt", "migrate", "checkpoint", "demo/old.h5", "new.keras", folder=folder)
        run("dtopt", "migrate", "verify", "demo/old.h5", "new.keras", folder=folder)
        run("python", "demo/continue.py", "new.keras", folder=folder)
        print("\n==== from Keras 2.3.1 to a mesh of 2x2 devices; the count of steps was seen to be right")
        count = ("--set", "iterations=5")
        run("dtopt", "migrate", "checkpoint", "demo/keras231.h5", "slots", *count, folder=folder)
        run("dtopt", "migrate", "verify", "demo/keras231.h5", "slots", *count, folder=folder)
        run("python", str(ROOT / "examples" / "resume_on_mesh.py"), "slots", str(CASE), folder=folder)
        print("\n==== one optimizer step, measured next to its peers")
        run("dtopt", "bench", "--quick", folder=folder)


if __name__ == "__main__":
    main()
