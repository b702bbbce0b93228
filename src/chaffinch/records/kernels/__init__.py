"""Loops over records: compiled by numba if it is installed and loaded, otherwise the reference implementation in plain Python.

`choose(count)` returns the loops for `count` records; both sets give the same results for any input. Importing this package does not import
numba, which takes 0.4 s and 100 MB: an idle broker or a task of ten records does not need it. The compiled set is loaded by `load()` (a
server calls it in a thread once it is ready), or automatically when the reference implementation has processed `LOAD_AFTER_RECORDS`
records.

`python -m chaffinch.records.kernels` compiles everything once into numba's cache: next to these files if that directory is writable,
otherwise in the user's cache directory, otherwise nowhere. Later processes only load it. numba reads only directories that it may write to,
so an image built by one user and run by another needs NUMBA_CACHE_DIR in both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from chaffinch.signals import deferred_signals

LOAD_AFTER_RECORDS = 50_000
"""Records processed by the reference implementation before the compiled loops are loaded automatically: that takes about as long as
loading."""

LOOPS: dict[str, str] = {
    "measure": "sizes",
    "encode": "encode",
    "scan": "decode",
    "scan_batches": "decode",
    "scan_headers": "decode",
    "gather": "gather",
    "murmur2_partitions": "murmur2",
    "murmur2_of_key": "murmur2",
    "walk": "walk",
    "walk_valid": "walk",
    "retain": "retain",
    "find_keys": "retain",
    "extract_records": "retain",
    "extract_in_place": "retain",
    "walk_messages": "messages",
    "convert_messages": "messages",
    "unframe_snappy": "snappy",
    "shift_crc": "checksum",
}
"""Name of each loop -> the module, in this package and in `kernels_reference`, that defines it."""


@dataclass(frozen=True, slots=True)
class Loops:
    """One set of loops; their arguments and results are described in `kernels_reference`."""

    is_compiled: bool
    measure: Callable[..., int]
    encode: Callable[..., int]
    scan: Callable[..., int]
    scan_batches: Callable[..., int]
    scan_headers: Callable[..., int]
    gather: Callable[..., int]
    murmur2_partitions: Callable[..., int]
    murmur2_of_key: Callable[[bytes, int], int]
    walk: Callable[..., int]
    walk_valid: Callable[..., tuple[int, int, int]]
    retain: Callable[..., int]
    find_keys: Callable[..., int]
    extract_records: Callable[..., int]
    extract_in_place: Callable[..., int]
    walk_messages: Callable[..., int]
    convert_messages: Callable[..., int]
    unframe_snappy: Callable[..., int]
    shift_crc: Callable[[int, int], int]


class _State:
    """What this process has loaded. While `is_loading`, other threads use the reference implementation instead of waiting."""

    compiled: Loops | None = None
    is_loading = False
    missing_reason: str | None = None
    records_by_reference = 0


def _loops(package: str, *, is_compiled: bool) -> Loops:
    functions = {name: getattr(import_module(f"{package}.{file}"), name) for name, file in LOOPS.items()}
    return Loops(is_compiled=is_compiled, **functions)


REFERENCE = _loops("chaffinch.records.kernels_reference", is_compiled=False)


def choose(count: int) -> Loops:
    """The loops for `count` records."""
    if _State.compiled is not None:
        return _State.compiled
    _State.records_by_reference += count
    if _State.records_by_reference >= LOAD_AFTER_RECORDS and not _State.is_loading and load():
        return choose(count)
    return REFERENCE


def load() -> bool:
    """Load the compiled loops, compiling those missing in the cache; False if numba is not installed or fails to start.

    Takes 0.4 s from the cache, 5 s without it. Other threads use the reference implementation in the meantime.
    """
    if _State.compiled is None and _State.missing_reason is None:
        _State.is_loading = True
        try:
            # LLVM calls back into Python, where an exception of a signal handler is lost, or ends the process.
            with deferred_signals():
                _State.compiled = _loops(__name__, is_compiled=True)
        except (ImportError, OSError, SystemError) as error:
            # Not installed, incompatible with this numpy, no space for its cache, or pytest's assertion rewriting of these modules failed
            # in a thread (CPython's "AST constructor recursion depth mismatch"): slower, but still correct.
            _State.missing_reason = f"{type(error).__name__}: {error}"
        finally:
            _State.is_loading = False
    return _State.compiled is not None


def is_loaded() -> bool:
    """Whether `choose` returns the compiled loops."""
    return _State.compiled is not None


def missing_reason() -> str | None:
    """Why `load` failed; None if it did not, or was not called."""
    return _State.missing_reason
