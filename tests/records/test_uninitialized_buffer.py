"""Uninitialized buffers behave like any bytearray."""

from __future__ import annotations

import pytest

from chaffinch.records.uninitialized_buffer import uninitialized_buffer


@pytest.mark.parametrize("size", [0, 1, 61, 1_000_000])
def test_buffer_is_a_bytearray_of_its_size(size: int) -> None:
    made = uninitialized_buffer(size)
    assert (type(made), len(made)) == (bytearray, size)
    made[:] = bytes(range(256)) * (size // 256) + bytes(size % 256)
    made += b"x"
    assert (len(made), made[-1]) == (size + 1, ord("x"))
    del made[size // 2 :]
    assert len(made) == size // 2


def test_size_beyond_memory_raises_memory_error() -> None:
    with pytest.raises(MemoryError):
        uninitialized_buffer(2**62)
