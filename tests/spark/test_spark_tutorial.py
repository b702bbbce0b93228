"""The commands of `docs/tutorials/spark.md`, run one after the other in an empty folder: each prints what the page shows."""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "tutorials" / "spark.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_MARK = "== command "


def script_and_outputs(page: str, port: int) -> tuple[str, dict[str, list[str]]]:
    """A shell script that runs the page, and the lines that the page shows by the number and text of each command."""
    script, shown = ["exec 2>&1"], dict[str, list[str]]()
    for language, text in _BLOCK.findall(page.replace("9092", str(port))):
        if language == "python":
            script.append(f"cat > orders.py <<'PYTHON'\n{text}PYTHON")
        elif language == "bash":
            script += [line for line in text.splitlines() if not line.startswith("export PATH=")]
        else:
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, *output = part.splitlines()
                name = f"{len(shown)}: {command}"
                shown[name] = output
                script += [f"echo {_MARK!r}; echo {len(shown) - 1}", runnable(command, port)]
    return "\n".join(script), shown


def runnable(command: str, port: int) -> str:
    """The command of the page, with its waiting spelled out and on another port than that of other brokers here."""
    if command == "chaffinch broker 2> broker.log &":
        return f"chaffinch broker --listen 127.0.0.1:{port} 2> broker.log > ready &\nuntil [ -s ready ]; do sleep 0.1; done; cat ready"
    if command.endswith("python orders.py &"):
        return f"{command.removesuffix('&')} > paused.log 2>&1 &"
    if command == "cat paused":
        return "while kill -0 $! && ! [ -s paused ]; do sleep 0.1; done; cat paused"
    return command


def pattern(line: str) -> re.Pattern[str]:
    """The line of the page, with anything for `...`, numbers of bytes and processes, and ids."""
    escaped = re.escape(line).replace(r"\.\.\.", ".*")
    escaped = re.sub(r"\d+\\ bytes", r"\\d+\\ bytes", escaped)
    escaped = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{8,16}\b", "[0-9a-f]+", escaped)
    return re.compile(re.sub(r"@1\\ \d+$", r"@1 \\d+", escaped))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_commands_of_tutorial_print_what_the_page_shows(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    script, shown = script_and_outputs(PAGE.read_text(encoding="utf-8"), port)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    output_file = tmp_path / "output"  # A pipe would stay open until the broker ends.
    with output_file.open("wb") as stdout:
        running = subprocess.Popen(["bash", "-c", script], cwd=tmp_path, env=environment, stdout=stdout, start_new_session=True)
    try:
        running.wait(timeout=580)
    finally:
        os.killpg(running.pid, signal.SIGKILL)
    printed = output_file.read_text(encoding="utf-8")
    outputs = printed.split(f"{_MARK}\n")[1:]
    assert len(outputs) == len(shown), printed
    for (name, expected), output in zip(shown.items(), outputs, strict=True):
        lines = output.splitlines()[1:]
        if expected[:1] == ["..."]:
            lines = [line for line in lines if any(pattern(each).fullmatch(line) for each in expected[1:])]
            expected = expected[1:]
        if "consume" in name:
            lines, expected = sorted(lines), sorted(expected)
        if not expected:
            continue
        assert len(lines) == len(expected), (name, output)
        for line, each in zip(lines, expected, strict=True):
            assert pattern(each).fullmatch(line), (name, line, each)
