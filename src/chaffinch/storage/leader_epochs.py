"""Which leader epoch wrote what. Epochs only grow along a log and stand in every batch header, so they are found by bisection: a few reads
of headers, and nothing to keep (Apache Kafka keeps a file of epochs beside each log).

Functions of a log's segments, oldest first. They raise StorageError.
"""

from bisect import bisect_right
from collections.abc import Sequence

from chaffinch.records.batch_header import BatchHeader
from chaffinch.storage.segment import Segment

NO_EPOCH = -1


def epoch_at(segments: Sequence[Segment], offset: int) -> int:
    """The epoch of the batch that holds `offset`, or of the first after it; NO_EPOCH where there is none."""
    header = _first_from(segments, offset)
    return NO_EPOCH if header is None else header.leader_epoch


def end_of_epoch(segments: Sequence[Segment], epoch: int, log_start_offset: int, log_end_offset: int) -> tuple[int, int]:
    """(the largest epoch in the log up to `epoch`, the offset at which a later one begins).

    `epoch` itself and the offset of the log's first record where all epochs are later, as in Apache Kafka: what stands below the log's
    start counts no more, though its segment may still be there.
    """
    first = _first_from(segments, log_start_offset)
    if first is None:
        return epoch, log_end_offset
    if epoch < first.leader_epoch:
        return epoch, max(first.base_offset, log_start_offset)
    written = [segment for segment in segments if segment.size]
    number = bisect_right(written, epoch, key=lambda segment: segment.header_at(0).leader_epoch)
    segment = written[number - 1]
    entry = bisect_right(range(len(segment.index)), epoch, key=lambda at: segment.header_at(segment.index.position(at)).leader_epoch)
    found = NO_EPOCH
    # An index that was loaded may lack the segment's first batches, or all of a small one's.
    for _, header in segment.headers(segment.index.position(entry - 1) if entry else 0):
        if header.leader_epoch > epoch:
            return found, header.base_offset
        found = header.leader_epoch
    return found, written[number].base_offset if number < len(written) else log_end_offset


def _first_from(segments: Sequence[Segment], offset: int) -> BatchHeader | None:
    """Of the batch that holds `offset`, or of the first after it."""
    number = max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1)
    for segment in segments[number:]:
        position = segment.position_of(offset)
        if position < segment.size:
            return segment.header_at(position)
    return None
