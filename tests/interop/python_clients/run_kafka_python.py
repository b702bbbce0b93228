"""kafka-python in every scenario; see `scenario_program.py`."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import kafka
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, TopicAlreadyExistsError
from scenario_program import CULPRIT_KEYS, FIRST_TIMESTAMP_MS, HEADERS, ROUND, TIMEOUT_S, Records, main, records, report, until


def consumer(servers: str, group: str | None, **config: Any) -> KafkaConsumer:
    return KafkaConsumer(bootstrap_servers=servers, group_id=group, enable_auto_commit=False, auto_offset_reset="earliest", **config)


def send(client: KafkaProducer, topic: str, rows: Iterable[tuple[bytes | None, bytes]], **more: Any) -> list[str | None]:
    """Each record's error, None for success, in order of the rows."""
    futures = [client.send(topic, key=key, value=value, **more) for key, value in rows]
    client.flush(TIMEOUT_S)
    return [fate(future) for future in futures]


def fate(future: Any) -> str | None:
    try:
        future.get(TIMEOUT_S)
    except KafkaError as error:
        return type(error).__name__
    return None


def polled(client: KafkaConsumer, wait_ms: int = 1000, **more: Any) -> list[Any]:
    return list(itertools.chain.from_iterable(client.poll(timeout_ms=wait_ms, **more).values()))


def attempts() -> Iterator[int]:
    """A loop that ends in an error; in rebalances, polls return at once."""
    limit = time.monotonic() + TIMEOUT_S
    yield from itertools.takewhile(lambda _: time.monotonic() < limit, itertools.count())
    raise TimeoutError(f"nothing more within {TIMEOUT_S} s")


def read(servers: str, topic: str, isolation: str = "read_committed") -> list[Any]:
    """Everything that stands in the topic now."""
    client = consumer(servers, None, isolation_level=isolation)
    tps = [TopicPartition(topic, index) for index in client.partitions_for_topic(topic)]
    client.assign(tps)
    client.seek_to_beginning()
    ends = client.end_offsets(tps)
    found: list[Any] = []
    for _ in attempts():
        if all(client.position(tp) >= ends[tp] for tp in tps):
            break
        found += polled(client, 100)
    client.close()
    return found


def produce(servers: str, name: str, codec: str) -> None:
    client = KafkaProducer(bootstrap_servers=servers, compression_type=None if codec == "none" else codec, linger_ms=20)
    fates = send(client, name, records())
    found = read(servers, name)
    report(acknowledged=fates.count(None), read=len(found), same=sorted((each.key, each.value) for each in found) == sorted(records()))


def headers(servers: str, name: str, _: str) -> None:
    send(KafkaProducer(bootstrap_servers=servers), name, records(1), headers=HEADERS)
    report(headers=[[key, value.decode()] for key, value in read(servers, name)[0].headers])


class Member:
    """A consumer of a group in a thread of its own: this client may join forever without a poll at the moment the join ends."""

    def __init__(self, servers: str, topic: str, seen: set[bytes]) -> None:
        self.assigned = 0
        self._seen = seen
        self._stopped = threading.Event()
        self._client = consumer(servers, f"{topic}-group", heartbeat_interval_ms=500)
        self._client.subscribe([topic])
        self._thread = threading.Thread(target=self._poll)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _poll(self) -> None:
        while not self._stopped.is_set():
            self._seen.update(each.value for each in polled(self._client, 2000))
            self.assigned = len(self._client.assignment())
        self._client.commit()
        self._client.close()


@contextlib.contextmanager
def joined(servers: str, topic: str, seen: set[bytes]) -> Iterator[Member]:
    member = Member(servers, topic, seen)
    try:
        yield member
    finally:
        member.stop()


def group(servers: str, name: str, _: str) -> None:
    writer = KafkaProducer(bootstrap_servers=servers)
    seen: set[bytes] = set()

    def fill(label: str) -> None:
        rows: Records = records(ROUND, label)
        for partition in range(4):
            send(writer, name, rows[partition::4], partition=partition)

    fill("first")
    with joined(servers, name, seen) as one:
        until(lambda: len(seen) == ROUND)
        until(lambda: one.assigned == 4)
        report(alone=one.assigned)
        with joined(servers, name, seen) as two:
            until(lambda: one.assigned == two.assigned == 2)
            report(together=[one.assigned, two.assigned])
            fill("second")
            until(lambda: len(seen) == 2 * ROUND)
        until(lambda: one.assigned == 4)
        fill("third")
        until(lambda: len(seen) == 3 * ROUND)
        report(after=one.assigned, records=len(seen))


def offsets(servers: str, name: str, _: str) -> None:
    writer = KafkaProducer(bootstrap_servers=servers)
    for number, (key, value) in enumerate(records()):
        writer.send(name, key=key, value=value, timestamp_ms=FIRST_TIMESTAMP_MS + 1000 * number).get(TIMEOUT_S)
    tp = TopicPartition(name, 0)
    first = consumer(servers, f"{name}-group")
    first.subscribe([name])
    while next(first).offset < 29:
        pass
    first.commit({tp: OffsetAndMetadata(30, "", -1)})
    report(committed=first.committed(tp))
    first.close()
    second = consumer(servers, f"{name}-group")
    second.subscribe([name])
    report(resumed=next(second).offset)
    second.seek(tp, 70)
    report(sought=next(iter(polled(second, TIMEOUT_S * 1000))).offset)
    by_time = second.offsets_for_times({tp: FIRST_TIMESTAMP_MS + 49_500})[tp].offset
    report(by_time=by_time, beginning=second.beginning_offsets([tp])[tp], end=second.end_offsets([tp])[tp])
    second.close()


def idempotent(servers: str, name: str, _: str) -> None:
    report(acknowledged=send(KafkaProducer(bootstrap_servers=servers, enable_idempotence=True), name, records()).count(None))


def transactions(servers: str, name: str, _: str) -> None:
    client = KafkaProducer(bootstrap_servers=servers, transactional_id=f"{name}-id")
    client.init_transactions()
    member = consumer(servers, f"{name}-group")
    for number, commits in enumerate((True, False, True)):
        client.begin_transaction()
        send(client, name, records(10, f"round {number}"))
        if number < 2:
            client.send_offsets_to_transaction({TopicPartition(name, 0): OffsetAndMetadata(5 + number, "", -1)}, member.group_metadata())
        if commits:
            client.commit_transaction()
        else:
            client.abort_transaction()
    offset = member.committed(TopicPartition(name, 0))
    member.close()
    found = read(servers, name)
    rounds = sorted({int(each.value[6:7]) for each in found})
    report(committed=len(found), rounds=rounds, uncommitted=len(read(servers, name, "read_uncommitted")), offset=offset)


def transactionstates(servers: str, name: str, _: str) -> None:
    transactional_id = f"{name}-id"
    tp = TopicPartition(name, 0)
    admin = KafkaAdminClient(bootstrap_servers=servers)

    def state() -> str:
        return str(admin.describe_transactions([transactional_id])[transactional_id].state.value).lower()

    client = KafkaProducer(bootstrap_servers=servers, transactional_id=transactional_id)
    client.init_transactions()
    client.begin_transaction()
    send(client, name, records(10))
    report(open=state(), producers=len(admin.describe_producers([tp])[tp].active_producers))
    client.commit_transaction()
    until(lambda: state().startswith("complete"))
    listed = [each.transactional_id for found in admin.list_transactions().values() for each in found]
    report(ended=state(), listed=transactional_id in listed)


def topics(servers: str, name: str, _: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=servers)
    topic = f"{name}-made"

    def partitions() -> int:
        return len(admin.describe_topics([topic])[0]["partitions"])

    def retention() -> str:
        found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
        return str(found["topic"][topic]["retention.ms"]["value"])

    wanted = {topic: {"num_partitions": 2, "replication_factor": 1, "configs": {"retention.ms": "7200000"}}}
    admin.create_topics(wanted, wait_for_metadata=True)
    report(created=partitions())
    try:
        admin.create_topics(wanted)
    except TopicAlreadyExistsError:
        report(refused=True)
    report(config=retention())
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, configs={"retention.ms": "3600000"})])
    until(lambda: retention() == "3600000")
    report(altered=retention())
    admin.create_partitions({topic: 4})
    admin.wait_for_topics([topic])
    report(partitions=partitions())
    send(KafkaProducer(bootstrap_servers=servers), topic, records(10), partition=3)
    last = TopicPartition(topic, 3)
    admin.delete_records({last: 5})
    report(records_deleted=admin.list_partition_offsets({last: -2})[last].offset)
    admin.delete_topics([topic])
    report(deleted=topic not in admin.list_topics())
    admin.close()


def groups(servers: str, name: str, _: str) -> None:
    group_id = f"{name}-group"
    send(KafkaProducer(bootstrap_servers=servers), name, records(10))
    member = consumer(servers, group_id)
    member.subscribe([name])
    while next(member).offset < 9:
        pass
    member.commit()
    member.close()
    admin = KafkaAdminClient(bootstrap_servers=servers)

    def listed() -> bool:
        return group_id in [each["group_id"] for each in admin.list_groups()]

    report(listed=listed())
    report(state=str(admin.describe_groups([group_id])[group_id]["group_state"]).lower())
    report(offset=admin.list_group_offsets(group_id)[group_id][TopicPartition(name, 0)].offset)
    admin.delete_groups([group_id])
    report(deleted=not listed())
    admin.close()


def culprits(servers: str, name: str, _: str) -> None:
    client = KafkaProducer(bootstrap_servers=servers, linger_ms=1000, enable_idempotence=False)
    report(fates=send(client, name, [(key, b"v") for key in CULPRIT_KEYS]))


def versions(*_: str) -> None:
    report(version=kafka.__version__)


if __name__ == "__main__":
    main(
        {
            each.__name__: each
            for each in (produce, headers, group, offsets, idempotent, transactions, transactionstates, topics, groups, culprits, versions)
        }
    )
