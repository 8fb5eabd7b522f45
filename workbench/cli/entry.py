"""Where the command `workbench` starts: a Ctrl-C that comes before the rest is imported gets its line too."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command; returns the exit code."""
    try:
        from workbench.cli.app import main as run

        return run()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr, flush=True)
        return 130
