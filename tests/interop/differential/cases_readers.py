"""Cases: fetch sessions, and readers while a log's beginning and a topic's options move."""

from __future__ import annotations

from typing import Any

from tests.interop.differential.cases_topics import BROKER, DELETE, SET, TOPIC, created
from tests.interop.differential.peer import Peer, codes_in
from tests.interop.differential.requests import fetch, list_offsets, produce, records, request, wall_ms

HOUR_MS = 3_600_000


def sessions(peer: Peer) -> None:
    """Two partitions in a session: what each answer names, and what ends it."""
    _create(peer, created("sessions", 3))
    for partition in (0, 1):
        peer.quietly(produce("sessions", records(b"a"), partition=partition), 9)
    both = [{"topic": "sessions", "partitions": [_place(0), _place(1)]}]
    given = peer.ask("session: begin", _session(0, 0, both), 12).session_id
    peer.ask("session: again from the beginning", _session(given, 1), 12)
    peer.ask("session: read on", _session(given, 2, [{"topic": "sessions", "partitions": [_place(0, 1), _place(1, 1)]}]), 12)
    peer.ask("session: no news", _session(given, 3), 12)
    peer.quietly(produce("sessions", records(b"b"), partition=1), 9)
    peer.ask("session: news of one", _session(given, 4), 12)
    peer.ask("session: same epoch again", _session(given, 4), 12)
    peer.ask("session: an epoch ahead", _session(given, 9), 12)
    peer.ask("session: one beyond its end", _session(given, 5, [{"topic": "sessions", "partitions": [_place(0, 77)]}]), 12)
    peer.ask("session: still beyond", _session(given, 6), 12)
    peer.ask("session: mended", _session(given, 7, [{"topic": "sessions", "partitions": [_place(0, 1), _place(1, 2)]}]), 12)
    peer.ask("session: mended, no news", _session(given, 8), 12)
    peer.ask("session: partition that is not there", _session(given, 9, [{"topic": "sessions", "partitions": [_place(9)]}]), 12)
    peer.ask("session: still not there", _session(given, 10), 12)
    peer.ask("session: forget it", _session(given, 11, forgotten_topics_data=[{"topic": "sessions", "partitions": [9]}]), 12)
    peer.quietly(_delete_records("sessions", 1, 1), 2)
    peer.ask("session: a log begins later", _session(given, 12), 12)
    peer.ask("session: by id", _session(given, 13), 13)
    peer.ask("session: forget all", _session(given, 13, forgotten_topics_data=[{"topic": "sessions", "partitions": [0, 1]}]), 12)
    peer.ask("session: gone with its last partition", _session(given, 14), 12)
    given = peer.ask("session: another", _session(0, 0, both), 12).session_id
    peer.ask("session: end", _session(given, -1, both), 12)
    peer.ask("session: after its end", _session(given, 1), 12)
    peer.ask("session: new in place of an unknown one", _session(given, 0, both), 12)


def session_of_a_deleted_topic(peer: Peer) -> None:
    """A topic goes, and another one comes under its name."""
    _create(peer, created("phoenix"))
    first = _id_of(peer, "phoenix")
    place = [{"topic_id": first, "partitions": [_place(0)]}]
    given = peer.ask("phoenix: begin", _session(0, 0, place), 17).session_id
    peer.quietly(request("DeleteTopics", topics=[{"name": "phoenix"}], timeout_ms=5000), 6)
    _until(peer, "phoenix", code=3)
    peer.ask("phoenix: deleted", _session(given, 1), 17)
    _create(peer, created("phoenix"))
    peer.ask("phoenix: there again", _session(given, 2), 17)
    peer.ask("phoenix: old id without session", _session(0, -1, place), 17)
    second = [{"topic_id": _id_of(peer, "phoenix"), "partitions": [_place(0)]}]
    forgotten = [{"topic_id": first, "partitions": [0]}]
    peer.ask("phoenix: the new id", _session(given, 3, second, forgotten_topics_data=forgotten), 17)


def beginnings(peer: Peer) -> None:
    """Look-ups and reads after records were deleted from the middle of a batch."""
    _create(peer, created("trimmed"))
    times = [wall_ms() - HOUR_MS + 1000 * place for place in range(6)]
    times[1] += HOUR_MS // 2  # The latest is among those that go.
    peer.quietly(produce("trimmed", records(b"a", b"b", b"c", timestamps=times[:3])), 9)
    peer.quietly(produce("trimmed", records(b"d", b"e", b"f", timestamps=times[3:])), 9)
    peer.ask("trimmed: delete", _delete_records("trimmed", 0, 2), 2)
    for offset in (0, 1, 2, 3, 6, 7):
        peer.ask(f"trimmed: fetch {offset}", fetch("trimmed", offset), 12)
    for special in (-1, -2, -3, -4, -5):
        peer.ask(f"trimmed: place {special}", list_offsets("trimmed", special), 9)
    for place, time in enumerate(times):
        peer.ask(f"trimmed: time of {place}", list_offsets("trimmed", time), 9)
    peer.ask("trimmed: delete again", _delete_records("trimmed", 0, 1), 2)
    peer.ask("trimmed: delete all", _delete_records("trimmed", 0, -1), 2)
    for special in (-1, -2, -3, -4):
        peer.ask(f"trimmed: place {special}, nothing left", list_offsets("trimmed", special), 9)
    peer.ask("trimmed: time, nothing left", list_offsets("trimmed", times[0]), 9)


def options_at_run_time(peer: Peer) -> None:
    """Which of a topic's own option, the cluster's default and the broker's wins, and what a change refuses from then on."""
    _create(peer, created("options"))
    peer.ask("options: produce 2000 bytes", produce("options", records(b"x" * 2000)), 9)
    _alter(peer, "smaller batches", TOPIC, "options", ("max.message.bytes", SET, "1000"))
    peer.ask("options: refused now", produce("options", records(b"x" * 2000)), 9)
    _alter(peer, "cluster default", BROKER, "", ("message.max.bytes", SET, "500"))
    _describe(peer, "topic over default", "options", "max.message.bytes")
    _alter(peer, "topic's own goes", TOPIC, "options", ("max.message.bytes", DELETE, None))
    _describe(peer, "default is left", "options", "max.message.bytes")
    peer.ask("options: refused by the default", produce("options", records(b"x" * 700)), 9)
    _alter(peer, "default goes", BROKER, "", ("message.max.bytes", DELETE, None))
    peer.ask("options: taken again", produce("options", records(b"x" * 2000)), 9)
    _alter(peer, "lags crossed", TOPIC, "options", ("min.compaction.lag.ms", SET, "10"), ("max.compaction.lag.ms", SET, "5"))
    _alter(peer, "no policy", TOPIC, "options", ("cleanup.policy", SET, ""), validate_only=True)
    _alter(peer, "no policy at all", TOPIC, "options", ("cleanup.policy", SET, ""))
    peer.ask("options: delete records without policy", _delete_records("options", 0, 1), 2)
    _alter(peer, "compacted", TOPIC, "options", ("cleanup.policy", SET, "compact"))
    peer.ask("options: delete records by compaction", _delete_records("options", 0, 1), 2)
    _alter(peer, "default policy", TOPIC, "options", ("cleanup.policy", DELETE, None))
    _alter(peer, "policy twice", TOPIC, "options", ("cleanup.policy", SET, "delete,delete"), validate_only=True)
    _alter(peer, "not at run time", BROKER, "", ("log.dirs", SET, "/elsewhere"))
    _alter(peer, "unknown to brokers", BROKER, "", ("no.such", SET, "1"))
    _alter(peer, "append time", TOPIC, "options", ("message.timestamp.type", SET, "LogAppendTime"))
    peer.ask("options: an old time is replaced", produce("options", records(b"a", timestamps=[1])), 9)
    _alter(peer, "own lag", TOPIC, "options", ("max.compaction.lag.ms", SET, "1000"))
    _alter(peer, "default lag crosses it", BROKER, "", ("log.cleaner.min.compaction.lag.ms", SET, "5000"))
    _describe(peer, "both lags", "options", "min.compaction.lag.ms", "max.compaction.lag.ms")
    _alter(peer, "while crossed", TOPIC, "options", ("retention.ms", SET, "3600000"))
    _alter(peer, "uncrossed", BROKER, "", ("log.cleaner.min.compaction.lag.ms", DELETE, None))


def _alter(peer: Peer, label: str, kind: int, name: str, *changes: tuple[str, int, str | None], **more: object) -> None:
    wanted = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
    resources = [{"resource_type": kind, "resource_name": name, "configs": wanted}]
    peer.ask(f"options: {label}", request("IncrementalAlterConfigs", resources=resources, **more), 1)
    # Apache Kafka's brokers learn of it a moment later.
    peer.settle()


def _describe(peer: Peer, label: str, topic: str, *keys: str) -> None:
    asked = [{"resource_type": TOPIC, "resource_name": topic, "configuration_keys": list(keys)}]
    peer.ask(f"options: {label}", request("DescribeConfigs", resources=asked, include_synonyms=True), 4)


def _session(session: int, epoch: int, topics: list[Any] | None = None, **more: Any) -> Any:
    values = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": 1 << 20, "session_id": session, "session_epoch": epoch}
    return request("Fetch", topics=topics or [], **values, **more)


def _place(partition: int, offset: int = 0) -> dict[str, int]:
    return {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 1 << 20}


def _delete_records(topic: str, partition: int, offset: int) -> Any:
    asked = {"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}
    return request("DeleteRecords", topics=[asked], timeout_ms=5000)


def _create(peer: Peer, wanted: dict[str, object]) -> None:
    peer.quietly(request("CreateTopics", topics=[wanted], timeout_ms=10_000), 7)
    _until(peer, str(wanted["name"]), code=0)


def _id_of(peer: Peer, name: str) -> Any:
    return _metadata(peer, name).topic_id


def _metadata(peer: Peer, name: str) -> Any:
    asked = request("Metadata", topics=[{"name": name}], allow_auto_topic_creation=False)
    return peer.quietly(asked, 12).topics[0]


def _until(peer: Peer, name: str, code: int) -> None:
    """Wait until the broker knows it; Apache Kafka answers before."""
    for _ in range(50):
        found = _metadata(peer, name)
        if found.error_code == code and all(_can_be_read(peer, name, partition.partition_index) for partition in found.partitions):
            return
        peer.settle()


def _can_be_read(peer: Peer, topic: str, partition: int) -> bool:
    answer = peer.quietly(fetch(topic, 0, partition=partition), 12)
    return not any(codes_in(answer))


SCENARIOS = (sessions, session_of_a_deleted_topic, beginnings, options_at_run_time)
