"""When the compiled loops are loaded, and what is not: each case in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


def run(program: str, **environment: str) -> list[str]:
    finished = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | environment, capture_output=True, text=True, timeout=280, check=False
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


def test_importing_records_loads_neither_numba_nor_pyarrow() -> None:
    program = (
        "import sys, chaffinch.records.batch, chaffinch.records.validation; print(*[m for m in ('numba', 'pyarrow') if m in sys.modules])"
    )
    assert run(program) == []


ENCODE = """
import sys
from chaffinch.records import kernels
from chaffinch.records.batch import decode, encode
from chaffinch.records.columns import RecordColumns
def work(count):
    columns = RecordColumns.from_lists(None, [b"v"] * count, [1] * count)
    found = decode(encode(columns))
    assert [found.value(at) for at in range(len(found))] == [b"v"] * count
    assert found.timestamps.tolist() == [1] * count
"""


def test_small_work_stays_with_the_twin_and_large_work_loads_the_compiled_loops() -> None:
    program = f"{ENCODE}\nwork(10); print(kernels.is_loaded()); work(kernels.LOAD_AFTER_RECORDS); print(kernels.is_loaded())"
    assert run(program) == ["False", "True"]


def test_many_small_pieces_of_work_add_up() -> None:
    program = f"{ENCODE}\nkernels.LOAD_AFTER_RECORDS = 100\nfor _ in range(30): work(1)\nprint(kernels.is_loaded())"
    assert run(program) == ["True"]


def test_compile_step_prints_its_result() -> None:
    program = "from chaffinch.records.kernels.__main__ import main; import sys; sys.modules.update(HIDDEN); assert main() == 0"
    assert run(program.replace("HIDDEN", "{}")) == ["compiled", "loops:", "in", "the", "cache"]
    assert run(program.replace("HIDDEN", "numba=None"))[:3] == ["compiled", "loops:", "none"]


def test_without_numba_the_twin_serves_everything() -> None:
    program = f"""
{ENCODE}
sys.modules["numba"] = None
kernels.LOAD_AFTER_RECORDS = 0
work(10)
print(kernels.load(), kernels.is_loaded(), "numba" in kernels.missing_reason())
work(10)
"""
    assert run(program) == ["False", "False", "True"]


def test_twin_serves_while_another_thread_loads() -> None:
    program = f"""{ENCODE}
from threading import Event, Thread
import chaffinch.records.kernels as k
started, finish, original = Event(), Event(), k.import_module
def slow_import(name):
    started.set(); finish.wait(60)
    return original(name)
k.import_module = slow_import
thread = Thread(target=k.load)
thread.start(); started.wait(60)
k.LOAD_AFTER_RECORDS = 0
work(10); print(k.is_loaded())
finish.set(); thread.join(60); print(k.is_loaded())
"""
    assert run(program) == ["False", "True"]


def test_ctrl_c_during_loading_is_raised_after_loading() -> None:
    """LLVM asks Python for what is in the cache, and what is raised there is lost."""
    program = f"""{ENCODE}
import signal
import chaffinch.records.kernels as k
original = k.import_module
def interrupted_import(name):
    k.import_module = original
    try:
        signal.raise_signal(signal.SIGINT)
        return original(name)
    except KeyboardInterrupt:
        print("lost")
        return original(name)
k.import_module = interrupted_import
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    k.load()
except KeyboardInterrupt:
    print(k.is_loaded())
"""
    assert run(program) == ["True"]


@pytest.mark.parametrize("cache", ["a file", "a folder"])
def test_loops_compile_without_a_writable_cache(tmp_path: Path, cache: str) -> None:
    """A file in its place stands for a folder that cannot be written to; a good folder is filled."""
    folder = tmp_path / "cache"
    if cache == "a file":
        folder.write_text("")
    program = "from chaffinch.records.kernels import gather; print(gather.gather.stats.cache_path is not None)"
    only_there = {"NUMBA_CACHE_DIR": str(folder), "NUMBA_CACHE_LOCATOR_CLASSES": "UserProvidedCacheLocator"}
    assert run(program, **only_there) == [str(cache == "a folder")]
    assert cache == "a file" or any(folder.rglob("*.nbc"))


def test_bounds_checks_bypass_the_cache(tmp_path: Path) -> None:
    program = "from chaffinch.records.kernels import gather; print(gather.gather.stats.cache_path)"
    assert run(program, NUMBA_CACHE_DIR=str(tmp_path), NUMBA_BOUNDSCHECK="1") == ["None"]
    assert not any(tmp_path.rglob("*.nbc"))


def test_the_first_batch_after_loading_imports_nothing_more() -> None:
    program = f"{ENCODE}\nkernels.load(); before = set(sys.modules); work(kernels.LOAD_AFTER_RECORDS); print(*set(sys.modules) - before)"
    assert run(program) == []
