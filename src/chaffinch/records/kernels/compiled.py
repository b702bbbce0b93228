"""numba settings of the compiled loops: explicit types, without the GIL, kept in numba's cache. Imports numba.

Each module of loops is self-contained, helpers included: numba's cache notices a change of the loop's own file, but not of files with its
helpers. Helpers are `inlined`: they become part of the loops and have no cache entry.

Read-only arguments are declared as such, so that buffers of Arrow and `bytes` can be passed. numba does not check indices; the loops do.
Under NUMBA_BOUNDSCHECK=1 numba checks them as well; then nothing is cached, because the cache does not distinguish checked from unchecked
code.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numba.core.cgutils
import numba.extending
import numpy.ma as _imported_by_numba_at_its_first_array  # noqa: F401 # Otherwise the first batch waits for it.
from llvmlite import ir
from numba import types

Function = TypeVar("Function", bound=Callable[..., Any])

# numba's stubs describe neither its configuration nor its way to emit instructions.
_numba: Any = numba

# The bytes at an address, as an array; within compiled code only.
view_at = _numba.carray

INT64 = types.int64
BOOL = types.boolean
BYTES = types.Array(types.uint8, 1, "C", readonly=True)
INT64S = types.Array(types.int64, 1, "C", readonly=True)
BYTES_OUT = types.Array(types.uint8, 1, "C")
INT32S_OUT = types.Array(types.int32, 1, "C")
INT64S_OUT = types.Array(types.int64, 1, "C")
THREE_INT64S = _numba.types.UniTuple(types.int64, 3)

_IS_CHECKED = bool(_numba.config.BOUNDSCHECK)

# A division by zero gives zero instead of raising: the loops check their divisors, and code that can raise is larger.
_OPTIONS = {"nogil": True, "error_model": "numpy", "_nrt": False}


def of_bytes(function: Callable[..., int]) -> Callable[[bytes, int], int]:
    """Compile a loop over one `bytes` object, called as (data, length) through ctypes: a call through numba takes longer than the loop.

    The function gets the address and the length, and returns an unsigned 32-bit number.
    """
    signature = types.uint32(types.voidptr, types.int64)
    try:
        built = _numba.cfunc(signature, nopython=True, cache=not _IS_CHECKED)(function)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        built = _numba.cfunc(signature, nopython=True)(function)
    # Not CFUNCTYPE, which releases the GIL: that costs more than the loop.
    return ctypes.PYFUNCTYPE(ctypes.c_uint32, ctypes.c_char_p, ctypes.c_ssize_t)(built.address)


def compiled(*arguments: Any, returns: Any = INT64) -> Callable[[Function], Function]:
    """Compile a loop now, or load it from the cache."""
    signature = returns(*arguments)

    def decorate(function: Function) -> Function:
        if not _IS_CHECKED:
            try:
                return _numba.njit(signature, cache=True, **_OPTIONS)(function)  # type: ignore[no-any-return]
            except RuntimeError as error:
                # numba raises this if neither this directory nor the user's cache directory is writable.
                if "no locator available" not in str(error):
                    raise
        return _numba.njit(signature, **_OPTIONS)(function)  # type: ignore[no-any-return]

    return decorate


def inlined(function: Function) -> Function:
    """A helper of the loops in the same file."""
    return _numba.njit(function, forceinline=True, **_OPTIONS)  # type: ignore[no-any-return]


@_numba.extending.intrinsic  # type: ignore[untyped-decorator]
def _memmove(typing_context: Any, out: Any, out_start: Any, data: Any, start: Any, length: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        arrays = [context.make_array(signature.args[at])(context, builder, values[at]) for at in (0, 2)]
        target, source = (builder.gep(array.data, [values[at]]) for array, at in zip(arrays, (1, 3), strict=True))
        _numba.core.cgutils.raw_memmove(builder, target, source, values[4], 1)
        return context.get_dummy_value()

    return types.void(out, types.int64, data, types.int64, types.int64), generate


@_numba.extending.intrinsic  # type: ignore[untyped-decorator]
def prefetch(typing_context: Any, data: Any, position: Any) -> Any:
    """Prefetch `data[position]` into the processor's cache. It is a hint and may lie outside."""

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        address = builder.gep(context.make_array(signature.args[0])(context, builder, values[0]).data, [values[1]])
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        hint = _numba.core.cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(hint, [address, *(ir.Constant(word, value) for value in (0, 3, 1))])  # To be read, again and again, as data.
        return context.get_dummy_value()

    return types.void(data, types.int64), generate


@inlined
def copy_bytes(out: Any, out_start: int, data: Any, start: int, length: int) -> None:
    """Copy `data[start:start + length]` to `out[out_start:]`. Callers check the bounds; this does so only under NUMBA_BOUNDSCHECK.

    One memmove, so the ranges may overlap. A loop over bytes is ten times slower, an assignment of slices five times.
    """
    if _IS_CHECKED and (length < 0 or start < 0 or start + length > data.size or out_start < 0 or out_start + length > out.size):
        raise IndexError("a copy leaves its buffer")
    _memmove(out, out_start, data, start, length)
