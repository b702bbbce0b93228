"""CRC-32C against its published vectors, whole and in pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.records.checksum import crc32c

# RFC 3720, appendix B.4 (there in wire byte order), and the check value of the CRC catalogue.
VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


@pytest.mark.parametrize(("data", "expected"), VECTORS)
@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_published_vectors(data: bytes, expected: int, kind: type[bytearray] | type[bytes] | type[memoryview]) -> None:
    assert crc32c(kind(data)) == expected


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_checksum_continues_over_parts(first: bytes, second: bytes) -> None:
    assert crc32c(second, crc32c(first)) == crc32c(first + second)
