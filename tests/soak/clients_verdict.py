"""What the broker holds in the end, read by confluent-kafka, against what the clients wrote down."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import confluent_kafka

from tests.soak.clients_ledgers import Ledgers, ReaderLedger, SenderLedger, Tp, TransformerLedger
from tests.soak.clients_process import COMPACTED, NUMBERS_PER_LIFE, OUTPUT, PARTITIONS, PLAIN, READERS_GROUP, TRANSFORMERS_GROUP
from tests.soak.clients_reader import digest
from tests.soak.verdict import read_with_offsets

# What a run must have had to prove something, of its length: each is a half or less of what runs have on two processors.
SECONDS_PER_BROKER_KILL_MAX = 10.0
SECONDS_PER_CLIENT_KILL_MAX = 30.0
"""Of the part in which clients are killed."""
ACKNOWLEDGED_PER_SECOND_MIN = 50.0
ACKNOWLEDGED_SHARE_MIN = 0.9
"""Of the records that are no culprits. The others were on their way when their sender was killed, or failed."""

Stored = dict[Tp, list[tuple[int, bytes]]]
"""Place -> (offset, value) in order."""


def verdict(bootstrap_servers: str, ledgers: Ledgers, last_sender: int) -> list[str]:
    """Everything that is wrong; empty when nothing is. `last_sender` is the sender's life that was ended in peace."""
    stored: Stored = {
        (topic, partition): found for topic in PARTITIONS for partition, found in read_with_offsets(bootstrap_servers, topic).items()
    }
    faults = ledgers.faults() + ledgers.sender.outcome_faults(last_sender)
    faults += faults_of_sender(stored, ledgers.sender)
    transformed = committed_offsets(bootstrap_servers, TRANSFORMERS_GROUP, [PLAIN])
    faults += faults_of_transactions(stored, ledgers.transformer, transformed)
    readers = [ledgers.reader, ledgers.table_reader]
    faults += faults_of_readers(stored, readers, committed_offsets(bootstrap_servers, READERS_GROUP, PARTITIONS))
    if not ledgers.sender.failed or not ledgers.transformer.ended or not all(reader.read for reader in readers):
        faults.append("some client got nothing done: this run proves nothing")
    return faults


def faults_of_load(seconds: float, broker_kills: int, killing_seconds: float, client_kills: int, ledger: SenderLedger) -> list[str]:
    """What there was too little of. `killing_seconds`: so long clients were killed."""
    innocents = ledger.sent_count - len(ledger.culprits)
    floors = [
        ("kills of the broker", broker_kills, int(seconds / SECONDS_PER_BROKER_KILL_MAX)),
        ("kills of clients", client_kills, int(killing_seconds / SECONDS_PER_CLIENT_KILL_MAX)),
        ("records acknowledged", len(ledger.acked), int(seconds * ACKNOWLEDGED_PER_SECOND_MIN)),
        (f"of {innocents} records that are no culprits acknowledged", len(ledger.acked), int(innocents * ACKNOWLEDGED_SHARE_MIN)),
    ]
    return [f"{found} {what}, at least {least} are needed: this run proves nothing" for what, found, least in floors if found < least]


def committed_offsets(bootstrap_servers: str, group: str, topics: Iterable[str]) -> dict[Tp, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap_servers, "group.id": group})
    try:
        tps = [confluent_kafka.TopicPartition(topic, number) for topic in topics for number in range(PARTITIONS[topic])]
        return {(found.topic, found.partition): max(found.offset, 0) for found in consumer.committed(tps, 30)}
    finally:
        consumer.close()


def faults_of_sender(stored: Stored, ledger: SenderLedger) -> Iterator[str]:
    """Acknowledged means stored, and where it was said; nothing twice, no culprit, nothing that was surely not stored; in order."""
    where: dict[int, tuple[str, int, int]] = {}
    for (topic, partition), records in stored.items():
        if topic not in (PLAIN, COMPACTED):
            continue
        last: dict[int, int] = defaultdict(lambda: -1)
        for offset, value in records:
            number = int(value.partition(b":")[0])
            if number in where:
                yield f"record {number} is stored twice: {where[number]} and {(topic, partition, offset)}"
            where[number] = (topic, partition, offset)
            if number <= last[number // NUMBERS_PER_LIFE]:
                yield f"{topic}-{partition}: record {number} at {offset} is behind {last[number // NUMBERS_PER_LIFE]}"
            last[number // NUMBERS_PER_LIFE] = number
    for number, tp in ledger.acked.items():
        if where.get(number) != tp:
            yield f"record {number} was acknowledged at {tp}, and is at {where.get(number)}"
    for number in ledger.culprits.keys() & where.keys():
        yield f"culprit {number} ({ledger.culprits[number]}) is stored at {where[number]}"
    for number, (name, is_stored, text) in ledger.failed.items():
        if is_stored == "no" and number in where:
            yield f"record {number} failed with {name}, surely not stored, and is at {where[number]}: {text}"
    sent = {number for first, count, _ in ledger.topics for number in range(first, first + count)}
    for number in where.keys() - sent:
        yield f"record {number} is at {where[number]}, and no sender sent it"


def faults_of_transactions(stored: Stored, ledger: TransformerLedger, committed: dict[Tp, int]) -> Iterator[str]:
    """All of a transaction or nothing; each record of PLAIN below the committed offset transformed once, and none beyond."""
    seen: dict[str, list[int]] = defaultdict(list)
    sources: Counter[tuple[int, int]] = Counter()
    for (topic, partition), records in stored.items():
        for offset, value in records if topic == OUTPUT else ():
            if value.startswith(b"culprit"):
                yield f"{OUTPUT}-{partition}: a culprit is at {offset}: {value!r}"
                continue
            name, index, source, source_offset = value.decode().split("|")
            seen[name].append(int(index))
            sources[int(source), int(source_offset)] += 1
    for name, (count, plan) in ledger.begun.items():
        indices, must = sorted(seen.pop(name, [])), ledger.must_be_seen(name)
        whole = indices == list(range(count))
        if (must is True and not whole) or (must is False and indices) or (indices and not whole):
            yield f"transaction {name} ({plan}, {ledger.ended.get(name)}): {len(indices)} of {count} records are seen"
    if seen:
        yield f"records of transactions that no transformer began: {sorted(seen)[:5]}"
    for (_, partition), records in ((tp, found) for tp, found in stored.items() if tp[0] == PLAIN):
        end = committed[PLAIN, partition]
        wrong = [(offset, sources[partition, offset]) for offset, _ in records if sources[partition, offset] != (offset < end)]
        if wrong:
            yield f"{PLAIN}-{partition}, committed up to {end}: {len(wrong)} records are not transformed once, (offset, times): {wrong[:5]}"
        left = [offset for offset, _ in records if offset >= end]
        if left:
            yield f"{PLAIN}-{partition}: {len(left)} records were never transformed, from {left[0]} on"


def faults_of_readers(stored: Stored, ledgers: list[ReaderLedger], committed: dict[Tp, int]) -> Iterator[str]:
    """All that is visible was read, byte for byte, and nothing was committed that was not read."""
    values = {tp: dict(records) for tp, records in stored.items()}
    read: dict[Tp, set[int]] = defaultdict(set)
    for ledger in ledgers:
        for tp, runs, crc in ledger.read:
            offsets = [offset for first, last in runs for offset in range(first, last + 1)]
            read[tp].update(offsets)
            if digest(values[tp].get(offset, b"?") for offset in offsets) != crc:
                yield f"{tp}: what was read at {runs[:3]} is not what is there"
    for tp, records in values.items():
        missing = sorted(records.keys() - read[tp])
        lost = [offset for offset in missing if offset < committed[tp]]
        if lost:
            yield f"{tp}: committed up to {committed[tp]}, and {len(lost)} records below were never read, from {lost[0]} on"
        elif missing:
            yield f"{tp}: {len(missing)} records were never read, from {missing[0]} on (committed: {committed[tp]})"
        if committed[tp] > max(records, default=0) + 10_000:
            yield f"{tp}: {committed[tp]} is committed, far beyond the end"
