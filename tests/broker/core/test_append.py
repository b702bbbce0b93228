"""The shortcut on the append path, held to the rules it stands for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chaffinch.broker.core.append import is_plainly_valid
from chaffinch.broker.core.handlers.produce import answer_for
from chaffinch.identifiers import TopicPartition
from chaffinch.protocol.messages.produce import PartitionProduceResponse
from chaffinch.records.batch import HEADER_BYTES, BatchView, read_header
from chaffinch.records.batch_header import HEADER
from chaffinch.records.validation import Origin, ValidationPolicy, check_batch
from chaffinch.storage.partition_log import AppendResult
from tests.broker.batches import batch_of

SMALL = st.integers(-2, 3)


@given(
    base_offset=SMALL,
    attributes=st.integers(0, 127) | st.integers(-(2**15), 2**15 - 1),
    last_offset_delta=SMALL,
    count=SMALL,
    producer_id=SMALL,
    base_sequence=SMALL,
    batch_bytes_max=st.integers(HEADER_BYTES - 1, HEADER_BYTES + 1),
)
def test_plainly_valid_batch_keeps_every_batch_rule(
    base_offset: int, attributes: int, last_offset_delta: int, count: int, producer_id: int, base_sequence: int, batch_bytes_max: int
) -> None:
    header = read_header(batch_of(b"a"))._replace(
        length=HEADER_BYTES - 12,
        base_offset=base_offset,
        attributes=attributes,
        last_offset_delta=last_offset_delta,
        count=count,
        producer_id=producer_id,
        base_sequence=base_sequence,
    )
    view = BatchView(memoryview(HEADER.pack(*header)), header)
    policy = ValidationPolicy(topic_partition=TopicPartition("orders", 0), batch_bytes_max=batch_bytes_max)
    if is_plainly_valid(header, view.size, batch_bytes_max):
        assert check_batch(view, policy, Origin.CLIENT, crc_was_checked=True) is None


def test_ordinary_batch_is_plainly_valid() -> None:
    header = read_header(batch_of(b"a", b"b"))
    assert is_plainly_valid(header, header.size, 1 << 20)


def test_response_filled_by_hand_has_every_field() -> None:
    expected = PartitionProduceResponse(index=3, base_offset=7, log_append_time_ms=11, log_start_offset=5)
    assert answer_for(3, AppendResult(7, 9, 11, 5)) == expected
