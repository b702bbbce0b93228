"""What `pytest --quick` runs and leaves out: `make quick`."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
STARTS_A_PROCESS = "import subprocess\n\n\ndef test_it() -> None:\n    subprocess.run(['true'])\n"


def quick(*arguments: str) -> str:
    """What pytest prints."""
    command = [sys.executable, "-m", "pytest", "--quick", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout


def test_collected_tests() -> None:
    printed = quick("--collect-only", "tests/broker", "tests/runtime")
    collected = {line.partition("::")[0] for line in printed.splitlines() if "::" in line}
    assert {"tests/broker/core/test_timers.py", "tests/runtime/test_clock.py"} <= collected
    assert not collected & {"tests/broker/test_server.py", "tests/runtime/test_sockets.py"}, "sockets, and a file marked as long"


def test_tests_that_start_a_process_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text())
    (tmp_path / "test_starts.py").write_text(STARTS_A_PROCESS)
    printed = quick("-rs", "--confcutdir", str(tmp_path), "--rootdir", str(tmp_path), "-c", str(ROOT / "pyproject.toml"), str(tmp_path))
    assert "starts a process" in printed
    assert "1 skipped" in printed
    assert "left out: async_clients, broker, cli," in printed
