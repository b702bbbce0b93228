"""Fuzzing guided by coverage: what reaches a new branch of a parser is kept, and later inputs are made from it. By atheris (libFuzzer).

Each file in `targets/` is a target: `PARTS`, the modules whose branches are counted; `seeds()`, inputs to begin with; `check(data)`, which
raises for a fault. Each runs in a process of its own, for atheris changes the code of the modules and never comes back. With a seed and a
number of runs it is deterministic. `requirements-fuzz.lock` pins atheris; it has wheels for Linux on x86-64 only.

`python -m tests.fuzz.guided TARGET HEX` for one input, `python -m tests.fuzz.guided TARGET SEED RUNS FOLDER` for what `run` does. Not
collected by pytest.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import re
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

TARGETS = ("streams", "messages", "batches")
ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
INPUT_BYTES_MAX = 4096
MEMORY_MB_MAX = 1024
"""Of a process that fuzzes: inputs are small, so whatever takes more has believed what one of them claims."""
SECONDS_MAX = 20
"""For one input. Slow code is not its subject; what never ends is."""
ADDRESSES_ARE_FIXED = 0x0040000
"""ADDR_NO_RANDOMIZE of personality(2)."""
PERSONALITY_ASKED_FOR = 0xFFFFFFFF
FOUND = "found-"
LINE_MAX = 1000
STATUS = re.compile(r"#(\d+)\s+(INITED|DONE)\s+cov: (\d+) ft: (\d+)")


class Found(NamedTuple):
    """What one run has come to: how many branches of its parts the seeds reach, and how many all inputs."""

    runs: int
    by_seeds: int
    reached: int

    def __str__(self) -> str:
        return f"{self.runs} inputs, {self.reached} branches reached, {self.by_seeds} of them by the seeds"


def is_available() -> bool:
    """Whether this machine has atheris. Raises RuntimeError where it has none and should."""
    if importlib.util.find_spec("atheris") is not None:
        return True
    if (sys.platform, platform.machine()) == ("linux", "x86_64"):
        raise RuntimeError("atheris is not installed: `make fuzz` does that, from requirements-fuzz.lock")
    return False


def run(target: str, seed: int, runs: int) -> Found:
    """Fuzz in a process of its own. AssertionError for a fault: what was raised, and how to see it again."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tests.fuzz.guided", target, str(seed), str(runs), folder]
        environment = os.environ | {"PYTHONHASHSEED": "0"}
        finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        said = finished.stdout + finished.stderr
        inputs = [file.read_bytes().hex() for file in Path(folder).glob(f"{FOUND}*")]
    status = {kind: int(reached) for _, kind, reached, _ in STATUS.findall(said)}
    is_done = finished.returncode == 0 and "DONE" in status
    again = "".join(f"\nagain: python -m tests.fuzz.guided {target} {data}" for data in inputs)
    assert is_done, f"target {target}, seed {seed}:\n{_essence(said)}{again}"
    return Found(runs, status["INITED"], status["DONE"])


def _essence(said: str) -> str:
    """What was raised, without libFuzzer's own running commentary."""
    lines = (line[:LINE_MAX] for line in said.splitlines() if not line.startswith(("INFO:", "WARNING:", "#", "\\", "0x", "MS:")))
    return "\n".join(lines)


def _keep_addresses() -> None:
    """Start again where everything lies where it did the last time: dictionaries look otherwise when objects lie elsewhere.

    Where that is not allowed, as in some containers, runs may differ.
    """
    system = ctypes.CDLL(None)
    personality = system.personality(PERSONALITY_ASKED_FOR)
    if not personality & ADDRESSES_ARE_FIXED and system.personality(personality | ADDRESSES_ARE_FIXED) != -1:
        os.execv(sys.executable, [sys.executable, "-m", "tests.fuzz.guided", *sys.argv[1:]])


def _modules_outside(parts: tuple[str, ...]) -> list[str]:
    """Every module of ours that is not one of these, or in one: the loops that numba compiles have to stay as they are, for one."""
    names = (".".join(file.relative_to(SOURCE).with_suffix("").parts) for file in SOURCE.rglob("*.py"))
    modules = {name.removesuffix(".__init__") for name in names}
    return sorted(name for name in modules if not any(name == part or name.startswith(f"{part}.") for part in parts))


def _parts_of(target: str) -> tuple[str, ...]:
    """Read without an import: that would load the parts as they are."""
    text = (Path(__file__).parent / "targets" / f"{target}.py").read_text()
    match = re.search(r"^PARTS = \((.*?)\)$", text, re.MULTILINE | re.DOTALL)
    assert match, f"{target} has no PARTS"
    return tuple(re.findall(r'"([\w.]+)"', match[1]))


def _fuzz(target: str, seed: int, runs: int, folder: Path) -> None:
    """Never returns: libFuzzer ends the process. `folder` gets the input that shows a fault."""
    import atheris

    with atheris.instrument_imports(include=["chaffinch"], exclude=_modules_outside(_parts_of(target))):
        module = import_module(f"tests.fuzz.targets.{target}")
        from chaffinch.protocol.source import Source

    compiled = Source.function
    # Codecs are made at their first use.
    Source.function = lambda *arguments: atheris.instrument_func(compiled(*arguments))  # type: ignore[method-assign]
    for function in getattr(module, "FUNCTIONS", ()):
        atheris.instrument_func(function)
    corpus = folder / "corpus"
    corpus.mkdir()
    for number, data in enumerate(module.seeds()):
        module.check(data)
        (corpus / f"{number:05}").write_bytes(data)
    limits = [f"-max_len={INPUT_BYTES_MAX}", f"-rss_limit_mb={MEMORY_MB_MAX}", f"-timeout={SECONDS_MAX}"]
    flags = [f"-seed={seed}", f"-runs={runs}", "-len_control=0", "-reload=0", f"-artifact_prefix={folder}/{FOUND}"]
    atheris.Setup([target, *limits, *flags, str(corpus)], module.check)
    atheris.Fuzz()


def main(arguments: list[str]) -> None:
    target, *rest = arguments
    if len(rest) == 1:
        import_module(f"tests.fuzz.targets.{target}").check(bytes.fromhex(rest[0]))
    else:
        _keep_addresses()
        _fuzz(target, int(rest[0]), int(rest[1]), Path(rest[2]))


if __name__ == "__main__":
    main(sys.argv[1:])
