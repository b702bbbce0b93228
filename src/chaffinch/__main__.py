"""The command `chaffinch`, and `python -m chaffinch`. Imports almost nothing, so that Ctrl-C ends it silently from the start."""

import sys

EXIT_INTERRUPTED = 130


def main() -> None:
    """Entry point. Never returns: ends with SystemExit."""
    try:
        from chaffinch.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
