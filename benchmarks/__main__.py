"""``python -m benchmarks --scale small``."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command; imported late, so that lanes, which import this module, stay small."""
    from benchmarks.command import app

    app()
    return 0


if __name__ == "__main__":
    sys.exit(main())
