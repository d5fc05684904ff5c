"""The entry point: `python -m dtopt_cli` is `dtopt`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command; Ctrl-C while it is still being imported ends it as later on."""
    try:
        from dtopt_cli import app
    except KeyboardInterrupt:
        sys.stderr.write("dtopt: interrupted\n")
        sys.exit(130)
    app.main()


if __name__ == "__main__":
    main()
