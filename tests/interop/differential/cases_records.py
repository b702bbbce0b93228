"""Cases: storing, reading and looking up records."""

from __future__ import annotations

import struct
from collections.abc import Callable
from uuid import UUID

from chaffinch.protocol.schema import Message
from chaffinch.records.batch import Compression
from tests.interop.differential.peer import Peer
from tests.interop.differential.requests import API_BY_NAME, fetch, list_offsets, produce, records, request, wall_ms

HOUR_MS = 3_600_000
CODECS = [codec for codec in Compression if codec is not Compression.NONE]


def stored(peer: Peer) -> None:
    """Batches that are stored, by every version and codec."""
    for version in API_BY_NAME["Produce"].served:
        if 3 <= version <= 12:
            peer.ask(f"produce v{version}", produce("orders", records(b"a", b"b")), version)
    for codec in CODECS:
        peer.ask(f"produce {codec.name}", produce("orders", records(b"a" * 200, b"b", compression=codec)), 9)
    peer.ask("produce zstd v6", produce("orders", records(b"a", compression=Compression.ZSTD)), 6)
    peer.ask("produce append time", produce("append-time", records(b"a")), 9)
    peer.ask("produce acks 1", produce("orders", records(b"a"), acks=1), 9)


def damaged(change: Callable[[bytearray], object], *values: bytes) -> bytearray:
    data = records(*(values or (b"a", b"b")))
    change(data)
    return data


def _set(position: int, layout: str, value: int) -> Callable[[bytearray], object]:
    return lambda data: struct.pack_into(layout, data, position, value)


def _with_crc(change: Callable[[bytearray], object]) -> Callable[[bytearray], object]:
    from chaffinch.records.checksum import crc32c

    def changed(data: bytearray) -> None:
        change(data)
        struct.pack_into(">I", data, 17, crc32c(memoryview(data)[21:]))

    return changed


def refused(peer: Peer) -> None:
    """Batches that break a rule."""

    def ask(label: str, message: object, version: int = 9) -> None:
        peer.ask(f"produce: {label}", message, version)  # type: ignore[arg-type]

    ask("missing topic", produce("missing", records(b"a")))
    ask("missing partition", produce("orders", records(b"a"), partition=77))
    ask("illegal topic", produce("a b", records(b"a")))
    ask("acks 7", produce("orders", records(b"a"), acks=7))
    ask("no batch", produce("orders", b""))
    ask("two batches", produce("orders", records(b"a") + records(b"b")))
    ask("cut short", produce("orders", records(b"a", b"b")[:-3]))
    ask("bytes left over", produce("plain-4", records(b"a") + b"\0\0\0"))
    ask("too large", produce("tiny", records(b"x" * 3000)))
    ask("wrong crc", produce("orders", damaged(_set(17, ">I", 1))))
    ask("magic 3", produce("orders", damaged(_set(16, ">b", 3))))
    ask("magic 1 in the header", produce("orders", damaged(_set(16, ">b", 1))))
    ask("length 10", produce("orders", damaged(_set(8, ">i", 10))))
    ask("base offset 5", produce("orders", damaged(_set(0, ">q", 5))))
    ask("leader epoch 9", produce("orders", damaged(_set(12, ">i", 9))))
    ask("count 3 of 2", produce("orders", damaged(_with_crc(_set(57, ">i", 3)))))
    ask("count 0", produce("orders", damaged(_with_crc(_set(57, ">i", 0)))))
    ask("last delta 7", produce("orders", damaged(_with_crc(_set(23, ">i", 7)))))
    ask("last delta -1", produce("orders", damaged(_with_crc(_set(23, ">i", -1)))))
    ask("control batch", produce("orders", damaged(_with_crc(_set(21, ">h", 0x20)))))
    ask("codec 5", produce("orders", damaged(_with_crc(_set(21, ">h", 5)))))
    ask("claims gzip", produce("orders", damaged(_with_crc(_set(21, ">h", 1)))))
    ask("claims append time", produce("plain-4", damaged(_with_crc(_set(21, ">h", 8)))))
    ask("claims a delete horizon", produce("plain-4", damaged(_with_crc(_set(21, ">h", 0x40)))))
    ask("value length -2", produce("plain-4", damaged(_with_crc(_set(67, ">b", 3)), b"")))
    ask("append time to append time", produce("append-time", damaged(_with_crc(_set(21, ">h", 8)))))
    ask("null keys", produce("compacted", records(b"a", b"b", b"c", keys=[b"k", None, None])))
    ask("one null key", produce("compacted", records(b"a", b"b", keys=[b"k", None])))
    ask("null keys v7", produce("compacted", records(b"a", keys=[None])), 7)
    ask("old timestamps", produce("strict", records(b"a", b"b", timestamps=[wall_ms() - HOUR_MS, wall_ms()])))
    ask("new timestamps", produce("strict", records(b"a", b"b", timestamps=[wall_ms(), wall_ms() + HOUR_MS])))
    ask("no timestamp", produce("strict", records(b"a", timestamps=[-1])))
    ask("far ahead", produce("orders", records(b"a", timestamps=[wall_ms() + 2 * HOUR_MS])))
    for codec in CODECS:
        ask(f"null key {codec.name}", produce("compacted", records(b"a", b"b" * 100, keys=[b"k", None], compression=codec)))
    ask("internal topic", produce("__consumer_offsets", records(b"a")))
    ask("transactional without id", produce("orders", records(b"a", producer=(5, 0), sequence=0, is_transactional=True)))
    data = {"name": "orders", "partitions": [{"index": 0, "records": records(b"a")}, {"index": 0, "records": records(b"b")}]}
    ask("partition twice", request("Produce", acks=-1, timeout_ms=5000, topics=[data]))
    ask("nothing", request("Produce", acks=-1, timeout_ms=5000, topics=[]))
    ask("unknown topic id", produce("", records(b"a"), topic_id=UUID(int=3)), 13)


def sequences(peer: Peer) -> None:
    """An idempotent producer: duplicates, gaps, epochs."""
    given = peer.quietly(request("InitProducerId", transactional_id=None, transaction_timeout_ms=60_000), 4)
    pid = given.producer_id

    def ask(label: str, sequence: int, epoch: int = 0, *values: bytes) -> None:
        peer.ask(f"sequence: {label}", produce("plain-3", records(*(values or (b"a",)), producer=(pid, epoch), sequence=sequence)), 9)

    ask("first 0", 0)
    for sequence in range(1, 8):
        ask(f"next {sequence}", sequence)
    ask("again 7", 7)
    ask("again 3", 3)
    ask("again 2, forgotten", 2)
    ask("a gap", 20)
    ask("part of a stored one", 6, 0, b"a", b"b", b"c")
    ask("next epoch, sequence 5", 5, 1)
    ask("next epoch, sequence 0", 0, 1)
    ask("old epoch", 8, 0)
    ask("no sequence", -1, 1)
    unknown = produce("plain-3", records(b"a", producer=(pid + 500_000, 0), sequence=40), partition=1)
    peer.ask("sequence: unknown producer", unknown, 9)


def read(peer: Peer) -> None:
    """Fetch and look-ups in partition 1 of `orders`, which holds three batches."""
    for values in ((b"a", b"b"), (b"c",), (b"d", b"e")):
        peer.quietly(produce("orders", records(*values, timestamps=[1_000_000 * (value[0] - 96) for value in values]), partition=1), 9)
    for version in API_BY_NAME["Fetch"].served:
        if version <= 12:
            peer.ask(f"fetch v{version}", fetch("orders", 0, partition=1), version)
    for label, offset in (("in the middle", 3), ("the end", 5), ("beyond", 6), ("negative", -1)):
        peer.ask(f"fetch: {label}", fetch("orders", offset, partition=1), 12)
    peer.ask("fetch: missing topic", fetch("missing", 0), 12)
    peer.ask("fetch: missing partition", fetch("orders", 0, partition=99), 12)
    peer.ask("fetch: committed", fetch("orders", 0, partition=1, isolation_level=1), 12)
    peer.ask("fetch: no bytes", fetch("orders", 0, partition=1, max_bytes=0), 12)
    peer.ask("fetch: newer epoch", _with_epoch(9), 12)
    peer.ask("fetch: unknown session", fetch("orders", 0, partition=1, session_id=12345, session_epoch=1), 12)
    peer.ask("fetch: session epoch without session", fetch("orders", 0, partition=1, session_id=0, session_epoch=3), 12)
    peer.ask("fetch: asks for a session", fetch("orders", 0, partition=1, session_id=0, session_epoch=0), 12)
    peer.ask("fetch: unknown topic id", request("Fetch", max_wait_ms=0, min_bytes=1, max_bytes=1000, topics=[_by_id()]), 15)
    for timestamp in (-1, -2, -3, -4, -5, -6, 0, 2_000_000, 2_500_000, 5_000_000, 6_000_000):
        peer.ask(f"offsets: {timestamp}", list_offsets("orders", timestamp, partition=1), 9)
    for version in API_BY_NAME["ListOffsets"].served:
        if version <= 10:
            peer.ask(f"offsets v{version}", list_offsets("orders", -1, partition=1), version)
    peer.ask("offsets: missing topic", list_offsets("missing", -1), 7)
    peer.ask("offsets: missing partition", list_offsets("orders", -1, partition=99), 7)
    peer.ask("offsets: committed", list_offsets("orders", -1, partition=1, isolation_level=1), 7)
    for epoch, current in ((0, -1), (0, 0), (5, -1), (0, 7), (-1, -1)):
        asked = {"topic": "orders", "partitions": [{"partition": 1, "leader_epoch": epoch, "current_leader_epoch": current}]}
        peer.ask(f"end of epoch {epoch}, current {current}", request("OffsetForLeaderEpoch", topics=[asked]), 3)


def _with_epoch(epoch: int) -> Message:
    asked = {"partition": 1, "fetch_offset": 0, "partition_max_bytes": 1000, "current_leader_epoch": epoch}
    return request("Fetch", max_wait_ms=0, min_bytes=1, max_bytes=1000, topics=[{"topic": "orders", "partitions": [asked]}])


def _by_id() -> dict[str, object]:
    return {"topic_id": UUID(int=3), "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}]}


def deleted(peer: Peer) -> None:
    """DeleteRecords and what readers see afterwards."""
    for label, topic, partition, offset in (
        ("two", "orders", 1, 2),
        ("less", "orders", 1, 1),
        ("beyond", "orders", 1, 99),
        ("negative", "orders", 1, -7),
        ("missing", "missing", 0, 1),
        ("compacted", "compacted", 0, 0),
        ("all", "orders", 1, -1),
    ):
        asked = {"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}
        peer.ask(f"delete records: {label}", request("DeleteRecords", topics=[asked], timeout_ms=5000), 2)
        if topic == "orders":
            peer.ask(f"earliest after deletion: {label}", list_offsets("orders", -2, partition=1), 7)
    peer.ask("fetch: below the start", fetch("orders", 0, partition=1), 12)


SCENARIOS = (stored, refused, sequences, read, deleted)
