"""The picture of `make demo`: what a terminal shows at the end, as SVG without requests to other hosts."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tools import demo_picture


def test_overwritten_lines_are_left_out() -> None:
    assert demo_picture.final_lines("10 %\r50 %\rdone\r\n\x1b[2Knext\n") == "done\nnext\n"


def test_picture_shows_the_output_of_the_command() -> None:
    text = demo_picture.record((sys.executable, "-c", "print('\x1b[32mgreen\x1b[0m', 'plain')"))
    drawn = demo_picture.picture(demo_picture.final_lines(text))
    assert "green" in drawn
    assert "plain" in drawn


def test_failed_command_leaves_no_picture() -> None:
    with pytest.raises(subprocess.CalledProcessError):
        demo_picture.record((sys.executable, "-c", "raise SystemExit(3)"))


def test_committed_picture_fetches_nothing() -> None:
    drawn = demo_picture.PICTURE.read_text(encoding="utf-8")
    assert "Every row exactly once" in drawn.replace("&#160;", " ")
    assert not re.findall(r"(?:url\(|href=)[\"']?https?:", drawn)
