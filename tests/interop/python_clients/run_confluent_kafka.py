"""confluent-kafka (librdkafka) in every scenario; see `scenario_program.py`."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
    libversion,
    version,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)
from scenario_program import CULPRIT_KEYS, FIRST_TIMESTAMP_MS, HEADERS, ROUND, TIMEOUT_S, main, records, report, until

Row = tuple[bytes | None, bytes]


def producer(servers: str, **config: Any) -> Producer:
    return Producer({"bootstrap.servers": servers, **{name.replace("_", "."): value for name, value in config.items()}})


def consumer(servers: str, group: str, **config: Any) -> Consumer:
    given = {name.replace("_", "."): value for name, value in config.items()}
    return Consumer(
        {"bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, "auto.offset.reset": "earliest", **given}
    )


def send(client: Producer, topic: str, rows: Iterable[Row], **more: Any) -> list[str | None]:
    """Each record's error, None for success, in order of the rows."""
    fates: list[str | None] = []

    def note(tp: int, error: KafkaError | None, _: Message) -> None:
        fates[tp] = error.name() if error else None

    for number, (key, value) in enumerate(rows):
        fates.append("no answer")
        client.produce(topic, key=key, value=value, on_delivery=partial(note, number), **more)
        client.poll(0)
    client.flush(TIMEOUT_S)
    return fates


def read(servers: str, topic: str, isolation: str = "read_committed") -> list[Message]:
    """Everything that stands in the topic now."""
    client = consumer(servers, f"{topic}-reader", isolation_level=isolation, enable_partition_eof=True, check_crcs=True)
    count = len(client.list_topics(topic, TIMEOUT_S).topics[topic].partitions)
    client.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in range(count)])
    found: list[Message] = []
    while count:
        message = client.poll(TIMEOUT_S)
        if message is None:
            raise TimeoutError(f"nothing came for {TIMEOUT_S} s after {len(found)} records")
        error = message.error()
        if error is None:
            found.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            count -= 1
        else:
            raise KafkaException(error)
    client.close()
    return found


def only(futures: dict[Any, Any]) -> Any:
    (future,) = futures.values()
    return future.result(TIMEOUT_S)


def produce(servers: str, name: str, codec: str) -> None:
    fates = send(producer(servers, compression_type=codec, linger_ms=20), name, records())
    found = read(servers, name)
    report(acknowledged=fates.count(None), read=len(found), same=sorted((m.key(), m.value()) for m in found) == sorted(records()))


def headers(servers: str, name: str, _: str) -> None:
    send(producer(servers), name, records(1), headers=HEADERS)
    found: Any = read(servers, name)[0].headers()
    report(headers=[[key, value.decode()] for key, value in found])


def group(servers: str, name: str, protocol: str) -> None:
    config = {"group_protocol": protocol} if protocol else {}
    writer = producer(servers)
    seen: set[bytes] = set()

    def fill(label: str) -> None:
        for number, row in enumerate(records(ROUND, label)):
            send(writer, name, [row], partition=number % 4)

    def poll(members: list[Consumer], done: Any) -> None:
        for _ in range(TIMEOUT_S * 10):
            for member in members:
                seen.update(message.value() or b"" for message in member.consume(ROUND, 0.1) if message.error() is None)
            if done():
                return
        raise TimeoutError(f"{len(seen)} records, partitions {[len(member.assignment()) for member in members]}")

    def sizes(*members: Consumer) -> list[int]:
        return [len(member.assignment()) for member in members]

    fill("first")
    one = consumer(servers, f"{name}-group", **config)
    one.subscribe([name])
    poll([one], lambda: len(seen) == ROUND)
    report(alone=sizes(one)[0])
    one.commit(asynchronous=False)
    two = consumer(servers, f"{name}-group", **config)
    two.subscribe([name])
    poll([one, two], lambda: sizes(one, two) == [2, 2])
    report(together=sizes(one, two))
    fill("second")
    poll([one, two], lambda: len(seen) == 2 * ROUND)
    two.close()
    poll([one], lambda: sizes(one) == [4])
    fill("third")
    poll([one], lambda: len(seen) == 3 * ROUND)
    report(after=sizes(one)[0], records=len(seen))
    one.close()


def offsets(servers: str, name: str, _: str) -> None:
    writer = producer(servers)
    for number, row in enumerate(records()):
        send(writer, name, [row], timestamp=FIRST_TIMESTAMP_MS + 1000 * number)
    tp = TopicPartition(name, 0)
    first = consumer(servers, f"{name}-group")
    first.subscribe([name])
    taken = first.consume(30, TIMEOUT_S)
    first.commit(message=taken[-1], asynchronous=False)
    report(committed=first.committed([tp], TIMEOUT_S)[0].offset)
    first.close()
    second = consumer(servers, f"{name}-group")
    second.subscribe([name])
    report(resumed=second.consume(1, TIMEOUT_S)[0].offset())
    second.seek(TopicPartition(name, 0, 70))
    report(sought=second.consume(1, TIMEOUT_S)[0].offset())
    by_time = second.offsets_for_times([TopicPartition(name, 0, FIRST_TIMESTAMP_MS + 49_500)], TIMEOUT_S)
    beginning, end = second.get_watermark_offsets(tp, TIMEOUT_S, cached=False)
    report(by_time=by_time[0].offset, beginning=beginning, end=end)
    second.close()


def idempotent(servers: str, name: str, _: str) -> None:
    report(acknowledged=send(producer(servers, enable_idempotence=True), name, records()).count(None))


def transactions(servers: str, name: str, _: str) -> None:
    client = producer(servers, transactional_id=f"{name}-id")
    client.init_transactions(TIMEOUT_S)
    member = consumer(servers, f"{name}-group")
    for number, commits in enumerate((True, False, True)):
        client.begin_transaction()
        send(client, name, records(10, f"round {number}"))
        if number < 2:
            tp = TopicPartition(name, 0, 5 + number)
            client.send_offsets_to_transaction([tp], member.consumer_group_metadata(), TIMEOUT_S)
        if commits:
            client.commit_transaction(TIMEOUT_S)
        else:
            client.abort_transaction(TIMEOUT_S)
    offset = member.committed([TopicPartition(name, 0)], TIMEOUT_S)[0].offset
    member.close()
    rounds = sorted({int((message.value() or b"")[6:7]) for message in read(servers, name)})
    report(committed=len(read(servers, name)), rounds=rounds, uncommitted=len(read(servers, name, "read_uncommitted")), offset=offset)


def topics(servers: str, name: str, _: str) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    topic = f"{name}-made"

    def retention() -> str:
        return str(only(admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]))["retention.ms"].value)

    only(admin.create_topics([NewTopic(topic, 2, 1, config={"retention.ms": "7200000"})]))
    report(created=len(admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions))
    try:
        only(admin.create_topics([NewTopic(topic, 2, 1)]))
    except KafkaException as refused:
        report(refused=refused.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS)
    report(config=retention())
    change = ConfigEntry("retention.ms", "3600000", incremental_operation=AlterConfigOpType.SET)
    only(admin.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])]))
    until(lambda: retention() == "3600000")
    report(altered=retention())
    only(admin.create_partitions([NewPartitions(topic, 4)]))
    send(producer(servers), topic, records(10), partition=3)
    report(partitions=len(admin.list_topics(topic, TIMEOUT_S).topics[topic].partitions))
    only(admin.delete_records([TopicPartition(topic, 3, 5)]))
    report(records_deleted=only(admin.list_offsets({TopicPartition(topic, 3): OffsetSpec.earliest()})).offset)
    only(admin.delete_topics([topic]))
    report(deleted=topic not in admin.list_topics(timeout=TIMEOUT_S).topics)


def groups(servers: str, name: str, _: str) -> None:
    send(producer(servers), name, records(10))
    member = consumer(servers, f"{name}-group")
    member.subscribe([name])
    member.consume(10, TIMEOUT_S)
    member.commit(asynchronous=False)
    member.close()
    admin = AdminClient({"bootstrap.servers": servers})
    listed = admin.list_consumer_groups().result(TIMEOUT_S)
    report(listed=f"{name}-group" in [each.group_id for each in listed.valid])
    described = only(admin.describe_consumer_groups([f"{name}-group"]))
    report(state=described.state.name.lower())
    offsets = only(admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(f"{name}-group")]))
    report(offset=offsets.topic_partitions[0].offset)
    only(admin.delete_consumer_groups([f"{name}-group"]))
    listed = admin.list_consumer_groups().result(TIMEOUT_S)
    report(deleted=f"{name}-group" not in [each.group_id for each in listed.valid])


def culprits(servers: str, name: str, _: str) -> None:
    client = producer(servers, linger_ms=1000, enable_idempotence=False)
    report(fates=send(client, name, [(key, b"v") for key in CULPRIT_KEYS]))


def versions(*_: str) -> None:
    report(version=f"{version()[0] if isinstance(version(), tuple) else version()} (librdkafka {libversion()[0]})")


if __name__ == "__main__":
    main({each.__name__: each for each in (produce, headers, group, offsets, idempotent, transactions, topics, groups, culprits, versions)})
