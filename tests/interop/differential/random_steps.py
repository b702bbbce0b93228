"""Random requests of producers, transactions and readers: what each may hold, with the values at its edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chaffinch.records.batch import Compression
from tests.interop.differential.random_model import DAY_MS, GROUPS, INT64_MAX, TRANSACTIONAL, Make, Model
from tests.interop.differential.sequence import Batch, Step


def _identity_kept(name: str) -> dict[str, Callable[[Any], Any]]:
    """After an answer without error."""
    return {
        f"{name} id": lambda answer: _if_well(answer, answer.producer_id),
        f"{name} epoch": lambda answer: _if_well(answer, answer.producer_epoch),
    }


def _if_well(answer: Any, value: Any) -> Any:
    if answer.error_code or value == -1:
        raise LookupError
    return value


def init_producer(model: Model) -> Step:
    name = model.rng.choice((*TRANSACTIONAL, "idempotent"))
    values: dict[str, Any] = {"transactional_id": None if name == "idempotent" else name}
    values["transaction_timeout_ms"] = model.rng.choices((60_000, 900_000, 900_001, 0, -1), (8, 2, 1, 1, 1))[0]
    if model.rng.random() < 0.4:
        values["producer_id"], values["producer_epoch"] = model.identity(name)
    for key in [key for key in model.sequences if key[0] == name]:
        del model.sequences[key]
    return Step(api="InitProducerId", version=model.version("InitProducerId", 6), values=values, keeps=_identity_kept(name))


def _batch(model: Model, place: tuple[str, int], name: str | None, *, is_transactional: bool) -> Batch:
    rng = model.rng
    count = rng.choice((1, 1, 2, 5))
    values = tuple(bytes([97 + number]) * rng.choice((1, 1, 10, 3000)) for number in range(count))
    # In a transaction Apache Kafka lets a partition join before it looks at the records: an abort leaves one marker more.
    keys = tuple(None if rng.random() < 0.15 and not is_transactional else b"k%d" % rng.randrange(3) for _ in range(count))
    offsets = 0 if is_transactional else rng.choices((0, -DAY_MS, 2 * DAY_MS, -40 * 365 * DAY_MS), (12, 2, 1, 1))[0]
    sequence = -1
    if name is not None:
        key = (name, *place)
        sequence = model.sequences[key] + rng.choices((0, 1, -1, -count, 5), (14, 1, 1, 2, 1))[0]
        sequence = max(0, sequence)
        model.sequences[key] = sequence + count
    return Batch(
        values=values,
        keys=keys,
        timestamps=(model.wall_ms + offsets,) * count,
        compression=rng.choices(list(Compression)[:5], (6, 1, 1, 1, 1))[0],
        producer=model.identity(name) if name else (-1, -1),
        sequence=sequence,
        is_transactional=is_transactional,
    )


def produce(model: Model) -> Step:
    rng = model.rng
    place = model.pick_partition()
    name = rng.choices((None, "idempotent", *TRANSACTIONAL), (2, 3, 6, 2))[0]
    is_transactional = name in TRANSACTIONAL if rng.random() < 0.95 else rng.random() < 0.5
    transactional_id = name if is_transactional else None
    if rng.random() < 0.05:
        transactional_id = rng.choice((None, *TRANSACTIONAL))
    part = {"index": place[1], "records": _batch(model, place, name, is_transactional=is_transactional)}
    topic = {"name": place[0], "partitions": [part]}
    acks = rng.choices((-1, 1, 2), (10, 3, 0 if is_transactional else 1))[0]
    version = max(8, model.transaction_version("Produce", 12) if is_transactional else model.version("Produce"))
    version = min(version, 12)  # Later ones go by ids of topics.
    return Step(
        api="Produce",
        version=version,
        values={"transactional_id": transactional_id, "acks": acks, "timeout_ms": 5000, "topics": [topic]},
    )


def add_partitions(model: Model) -> Step:
    name = model.rng.choice(TRANSACTIONAL)
    producer_id, epoch = model.identity(name)
    topics = [{"name": topic, "partitions": [partition]} for topic, partition in {model.pick_partition(), model.pick_partition()}]
    topics = list({topic["name"]: topic for topic in topics}.values())
    values = {
        "v3_and_below_transactional_id": name,
        "v3_and_below_producer_id": producer_id,
        "v3_and_below_producer_epoch": epoch,
        "v3_and_below_topics": topics,
    }
    return Step(api="AddPartitionsToTxn", version=model.version("AddPartitionsToTxn", 4), values=values)


def add_offsets(model: Model) -> Step:
    name = model.rng.choice(TRANSACTIONAL)
    producer_id, epoch = model.identity(name)
    values = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch, "group_id": model.rng.choice((*GROUPS, ""))}
    return Step(api="AddOffsetsToTxn", version=model.version("AddOffsetsToTxn"), values=values)


def commit_in_transaction(model: Model) -> Step:
    name = model.rng.choice(TRANSACTIONAL)
    producer_id, epoch = model.identity(name)
    topic, partition = model.pick_partition()
    values = {
        "transactional_id": name,
        "group_id": model.rng.choice(GROUPS),
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "topics": [{"name": topic, "partitions": [committed(model, partition)]}],
    }
    return Step(api="TxnOffsetCommit", version=model.transaction_version("TxnOffsetCommit", 5), values=values)


def committed(model: Model, partition: int) -> dict[str, Any]:
    """One offset to be committed."""
    rng = model.rng
    metadata = rng.choices(("m", "", None, "x" * 5000), (6, 2, 1, 1))[0]
    return {
        "partition_index": partition,
        "committed_offset": rng.choice((0, 1, 5, 1000, INT64_MAX)) if rng.random() < 0.9 else -1,
        "committed_leader_epoch": rng.choice((-1, 0)),
        "committed_metadata": metadata,
    }


def end_transaction(model: Model) -> list[Step]:
    name = model.rng.choice(TRANSACTIONAL)
    producer_id, epoch = model.identity(name)
    values = {"transactional_id": name, "producer_id": producer_id, "producer_epoch": epoch, "committed": model.rng.random() < 0.6}
    version = model.transaction_version("EndTxn", 5)
    return [Step(api="EndTxn", version=version, values=values, keeps=_identity_kept(name) if version >= 5 else {}), describe(model, name)]


def describe(model: Model, name: str | None = None) -> Step:
    """Apache Kafka answers the end of a transaction before its markers are written: it is waited for."""
    values = {"transactional_ids": [name or model.rng.choice((*TRANSACTIONAL, "{run}-nobody"))]}
    return Step(api="DescribeTransactions", version=0, values=values, until=_has_ended)


def _has_ended(answer: Any) -> bool:
    return not any(state.transaction_state.startswith("Prepare") for state in answer.transaction_states)


def describe_producers(model: Model) -> Step:
    topic, partition = model.pick_partition()
    return Step(api="DescribeProducers", version=0, values={"topics": [{"name": topic, "partition_indexes": [partition]}]})


def fetch(model: Model) -> Step:
    rng = model.rng
    topic, partition = model.pick_partition()
    asked = {
        "partition": partition,
        "fetch_offset": rng.choices((0, 1, 3, 10_000, -1), (8, 2, 2, 1, 1))[0],
        "partition_max_bytes": 1 << 20,
    }
    if rng.random() < 0.1:
        asked["partition_max_bytes"] = rng.choice((0, 1, 100))
    values = {
        "max_wait_ms": 0,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": rng.choice((0, 1)),
        "topics": [{"topic": topic, "partitions": [asked]}],
    }
    return Step(api="Fetch", version=model.version("Fetch", 13), values=values)


def list_offsets(model: Model) -> Step:
    rng = model.rng
    topic, partition = model.pick_partition()
    asked = {
        "partition_index": partition,
        "timestamp": rng.choice((-1, -2, -3, -4, -5, -6, 0, model.wall_ms, model.wall_ms + 3 * DAY_MS, model.wall_ms - DAY_MS, -7)),
    }
    values = {"isolation_level": rng.choice((0, 1)), "topics": [{"name": topic, "partitions": [asked]}]}
    return Step(api="ListOffsets", version=model.version("ListOffsets"), values=values)


def delete_records(model: Model) -> Step:
    topic, partition = model.pick_partition()
    asked = {"partition_index": partition, "offset": model.rng.choice((0, 1, 2, 5, -1, -2, 10_000))}
    values = {"timeout_ms": 5000, "topics": [{"name": topic, "partitions": [asked]}]}
    return Step(api="DeleteRecords", version=model.version("DeleteRecords"), values=values)


def offset_for_epoch(model: Model) -> Step:
    rng = model.rng
    topic, partition = model.pick_partition()
    asked = {"partition": partition, "current_leader_epoch": rng.choice((-1, 0, 5)), "leader_epoch": rng.choice((0, 1, -1, 100))}
    values = {"replica_id": -1, "topics": [{"topic": topic, "partitions": [asked]}]}
    return Step(api="OffsetForLeaderEpoch", version=model.version("OffsetForLeaderEpoch"), values=values)


WRITING: tuple[tuple[int, Make], ...] = (
    (6, init_producer),
    (20, produce),
    (8, add_partitions),
    (4, add_offsets),
    (5, commit_in_transaction),
    (7, end_transaction),
    (2, describe),
    (3, describe_producers),
    (5, fetch),
    (4, list_offsets),
    (2, delete_records),
    (1, offset_for_epoch),
)
