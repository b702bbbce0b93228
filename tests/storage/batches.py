"""Small record batches for the tests of this folder."""

from chaffinch.identifiers import NO_PRODUCER, NO_SEQUENCE, ProducerIdentity
from chaffinch.records.batch import encode
from chaffinch.records.columns import RecordColumns


def batch(
    count: int = 1,
    *,
    value: bytes = b"value",
    timestamps: list[int] | None = None,
    identity: ProducerIdentity = NO_PRODUCER,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    base_offset: int = 0,
) -> bytearray:
    """`count` records with key `k`; timestamps 0 unless given."""
    columns = RecordColumns.from_lists([b"k"] * count, [value] * count, timestamps or [0] * count)
    return encode(columns, identity=identity, base_sequence=base_sequence, is_transactional=is_transactional, base_offset=base_offset)
