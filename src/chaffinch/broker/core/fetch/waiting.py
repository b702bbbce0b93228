"""A fetch that waits until there is enough: bytes are counted, not read, until then."""

from __future__ import annotations

from dataclasses import dataclass

from chaffinch.broker.core.broker_state import BrokerState
from chaffinch.broker.core.fetch.places import FetchPlace
from chaffinch.broker.core.fetch.reading import FetchTerms, Reading
from chaffinch.broker.core.replicas.leader_epochs import leadership_fault
from chaffinch.broker.core.topics.registry import Partition
from chaffinch.errors import codes
from chaffinch.identifiers import TopicPartition
from chaffinch.storage.file_system import StorageError
from chaffinch.storage.partition_log import LogPosition


@dataclass(slots=True, eq=False)
class _Watched:
    """A place that is waited for. `bytes_ready` lie between `start` and `upper`, up to which the client may read."""

    place: FetchPlace
    partition: Partition
    start: LogPosition
    upper: int
    bytes_ready: int


class BytesAwaited:
    """Counts what a waiting fetch would give. Raises StorageError at construction."""

    def __init__(self, broker: BrokerState, terms: FetchTerms, reading: Reading) -> None:
        self._broker = broker
        self._terms = terms
        self._watched = [
            _Watched(place, partition, partition.log.position_of(place.asked.fetch_offset), place.asked.fetch_offset, 0)
            for place, partition in reading.readable
        ]

    @property
    def keys(self) -> list[TopicPartition]:
        return [watched.partition.topic_partition for watched in self._watched]

    def is_enough(self) -> bool:
        """Whether to read now: enough bytes, or something that the client should hear at once."""
        bytes_ready = 0
        for watched in self._watched:
            if not self._is_readable(watched):
                return True
            log = watched.partition.log
            upper = log.last_stable_offset if self._terms.is_committed else log.high_watermark
            if upper > watched.upper:
                try:
                    end = log.position_of(upper)
                except StorageError:
                    return True
                if end.segment != watched.start.segment:
                    return True  # The answer ends with the segment, so waiting adds nothing.
                watched.upper = upper
                watched.bytes_ready = min(end.position - watched.start.position, watched.place.asked.partition_max_bytes)
            bytes_ready += watched.bytes_ready
            if bytes_ready >= self._terms.bytes_min:
                return True
        return False

    def _is_readable(self, watched: _Watched) -> bool:
        partition = watched.partition
        if self._broker.topics.partition(*partition.topic_partition) is not partition:
            return False
        asked = watched.place.asked
        if asked.fetch_offset < partition.log.log_start_offset:
            return False
        terms = self._terms
        fault = leadership_fault(partition, terms.node_id, asked.current_leader_epoch, a_follower_will_do=terms.a_follower_will_do)
        return fault is codes.NONE
