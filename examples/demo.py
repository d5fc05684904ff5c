"""`make demo`: two real checkpoints of old frameworks are inspected, migrated, verified and resumed on a mesh, then
optimizers are measured. Every command is shown before it runs, so that it can be repeated by hand."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORPUS = ROOT / "tests" / "fixtures" / "corpus"
CASES = {
    "keras231-adam-amsgrad-mlp": "Keras 2.3.1 on TensorFlow 1.15",
    "tf24-adam-convbn": "tf.keras of TensorFlow 2.4",
}


def run(*command: str) -> None:
    """Show a command and run it; the demo ends where one fails."""
    shown = " ".join(shlex.quote(str(Path(c).relative_to(ROOT)) if c.startswith(str(ROOT)) else c) for c in command)
    print(f"\n\033[1m$ {shown}\033[0m" if sys.stdout.isatty() else f"\n$ {shown}", flush=True)
    words = [sys.executable if c == "python" else c for c in command]
    # TensorFlow writes start-up messages straight to stderr; they are shown only if something went wrong.
    stderr = subprocess.PIPE if command[0] == "python" else None
    result = subprocess.run(words, cwd=ROOT, check=False, stderr=stderr)
    if result.returncode:
        sys.stderr.write((result.stderr or b"").decode(errors="replace"))
        sys.exit(f"that command failed with exit code {result.returncode}")


def main() -> None:
    dtopt = str(Path(sys.executable).with_name("dtopt"))
    with tempfile.TemporaryDirectory(prefix="dtopt-demo-") as scratch:
        for case, written_by in CASES.items():
            source, migrated = str(CORPUS / case / "source" / "model.h5"), f"{scratch}/{case}"
            print(f"\n==== {case}: an optimizer's state that {written_by} wrote")
            run(dtopt, "migrate", "inspect", source)
            run(dtopt, "migrate", "checkpoint", source, migrated)
            run(dtopt, "migrate", "verify", source, migrated)
            run("python", "examples/resume_on_mesh.py", migrated, str(CORPUS / case))
    print("\n==== one optimizer step, measured beside its peers")
    run(dtopt, "bench", "--quick")


if __name__ == "__main__":
    main()
