"""`make demo-picture`: records `make demo` in a terminal of its own and writes the picture `docs/demo.svg`.

The recording is the real output of one run; only lines that a terminal has overwritten are left out.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURE: Final = ROOT / "docs" / "demo.svg"
COLUMNS: Final = 120
COMMAND: Final = (sys.executable, "-m", "examples.standard_library")


def record(command: tuple[str, ...]) -> str:
    """What the command prints to a terminal of `COLUMNS` columns. Raises CalledProcessError if it fails."""
    reader, writer = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}
    with subprocess.Popen(command, cwd=ROOT, stdout=writer, stderr=subprocess.DEVNULL, env=environment) as process:
        os.close(writer)
        parts = []
        while True:
            try:
                part = os.read(reader, 65536)
            except OSError:  # Linux reports the end of a terminal so.
                break
            if not part:
                break
            parts.append(part)
    os.close(reader)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return b"".join(parts).decode()


def final_lines(recording: str) -> str:
    """The lines as they stand at the end: a carriage return begins a line again, other cursor movements are dropped."""
    without_moves = re.sub(r"\x1b\[[0-9;?]*[A-HJKSTfhlsu]", "", recording)
    return "\n".join(line.rstrip("\r").rpartition("\r")[2].rstrip() for line in without_moves.split("\n"))


def picture(text: str) -> str:
    """The text as SVG."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=COLUMNS, file=nowhere, force_terminal=True)
        console.print(Text.from_ansi(text.strip("\n")))
        drawn = console.export_svg(title="make demo")
    # A viewer fetches nothing from other hosts: the fonts of the machine do.
    return re.sub(r"@font-face \{.*?\}\s*", "", drawn, flags=re.DOTALL)


def main() -> int:
    """The exit status."""
    PICTURE.write_text(picture(final_lines(record(COMMAND))), encoding="utf-8")
    print(f"{PICTURE.relative_to(ROOT)} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
