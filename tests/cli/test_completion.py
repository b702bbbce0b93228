"""Shell completion, in a real bash."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

BASH = shutil.which("bash")
pytestmark = pytest.mark.skipif(BASH is None, reason="bash is not installed")


def bash(script: str, home: Path) -> subprocess.CompletedProcess[str]:
    path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run([str(BASH), "--norc", "-c", script], capture_output=True, text=True, env={"PATH": path, "HOME": str(home)})


def completions(line: str, home: Path, load: str = 'eval "$(chaffinch --show-completion)"') -> list[str]:
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    given = " ".join(f"'{word}'" for word in words)
    run = f"COMP_WORDS=({given}); COMP_CWORD={len(words) - 1}; _chaffinch_completion chaffinch"
    done = bash(f"{load}\n{run}\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"", home)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("chaffinch to", ["topics"]),
        ("chaffinch topics de", ["describe", "delete"]),
        ("chaffinch topics create --part", ["--partitions"]),
        ("chaffinch groups reset-offsets --to-e", ["--to-earliest"]),
        ("chaffinch nowhere x", []),
    ],
)
def test_words_are_completed(tmp_path: Path, line: str, offered: list[str]) -> None:
    assert completions(line, tmp_path) == offered


def test_all_commands_are_offered_without_loading_them(tmp_path: Path) -> None:
    offered = completions("chaffinch ", tmp_path)
    assert {"broker", "topics", "produce", "consume", "errors"} <= set(offered)


def test_install_completion_writes_the_script_that_bash_loads(tmp_path: Path) -> None:
    done = bash("chaffinch --install-completion; true", tmp_path)
    assert done.returncode == 0
    assert str(tmp_path / ".bash_completions" / "chaffinch.sh") in done.stdout
    assert completions("chaffinch consu", tmp_path, load="source ~/.bashrc") == ["consume"]
