"""The program `trainyard`: imports the command line, which takes a moment, and runs it."""

from __future__ import annotations

import sys

_INTERRUPTED = 130  # ExitCode.INTERRUPTED, whose module may be the one that Ctrl-C kept from being imported


def main() -> None:
    """Run the CLI. Ctrl-C before a verb begins is said as later."""
    try:
        from trainyard_control.cli.main import main as run

        run()
    except KeyboardInterrupt:
        print("✗ Interrupted.", file=sys.stderr)
        sys.exit(_INTERRUPTED)
