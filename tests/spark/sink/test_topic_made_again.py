"""A topic that is deleted and made again between tasks and commit: no row is written by the partitions of the one before."""

import pickle

import pyarrow as pa
import pytest

from chaffinch.admin.topics import add_partitions, delete_topics
from chaffinch.broker.embedded import EmbeddedBroker
from chaffinch.spark.refusals import Refusal, Remedy
from chaffinch.spark.sink import writers
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.target import client_for, forget_client
from chaffinch.spark.task_facts import TaskContextFacts
from tests.spark.test_spark_write import values

KEYED = {"key": [f"k{number}" for number in range(20)], "value": [b"%d" % number for number in range(20)]}
NAMED = {**KEYED, "topic": ["orders"] * 20}
FACTS = TaskContextFacts(task=0, query_id="q", run_id="run", batch_id=1, master="local[2]")
OF_A_SINK = {"chaffinch.sink": "one", "chaffinch.batch.id": "1"}


class World:
    """A broker, and one write of some kind; what Spark does around it is played by hand."""

    def __init__(self, broker, given, *, is_stream):
        self.broker = broker
        # Without a checkpoint the marker of the batch before is missing.
        way = {"onMissingMarker": "write"} if is_stream or "chaffinch.sink" in given else {}
        parsed = SinkOptions.parse({"kafka.bootstrap.servers": broker.bootstrap_servers, **way, **given}, is_stream=is_stream)
        self.options, self.is_stream = parsed, is_stream

    def writer(self):
        return writers.stream_writer(self.options) if self.is_stream else writers.batch_writer(self.options)

    def planned(self):
        """A writer as it travels to the tasks, and for a batch write to the committing process."""
        return pickle.loads(pickle.dumps(self.writer()))

    def commit(self, writer, message):
        if self.is_stream:
            self.writer().commit([message], 1)
        else:
            writer.commit([message])

    def make_again(self, partition_count):
        delete_topics(client_for(self.options.client), ["orders"])
        self.broker.create_topic("orders", partition_count)


@pytest.fixture
def world(monkeypatch, request):
    monkeypatch.setattr(writers, "task_facts", lambda: FACTS)
    given, is_stream = request.param
    with EmbeddedBroker(topics={"orders": {"partitions": 2}, "markers": {"partitions": 1}}) as broker:
        made = World(broker, given, is_stream=is_stream)
        yield made
        forget_client(made.options.client)


WAYS = {
    "a stream": ({"topic": "orders"}, True),
    "a batch write": ({"topic": "orders"}, False),
    "a batch write with a token": ({"topic": "orders", "idempotencyToken": "t"}, False),
    "a KafkaSink": ({"topic": "orders", **OF_A_SINK}, False),
    "rows of a stream name it": ({"markerTopic": "markers"}, True),
    "rows of a KafkaSink name it": ({"markerTopic": "markers", **OF_A_SINK}, False),
}


@pytest.mark.parametrize("world", WAYS.values(), ids=WAYS, indirect=True)
def test_it_is_said_and_nothing_is_written(world):
    rows = KEYED if world.options.topic else NAMED
    writer = world.planned()
    message = writer.write(iter([pa.record_batch(rows)]))
    world.make_again(5)
    with pytest.raises(Refusal, match="SNAPSHOT_CHANGED: topic orders was deleted and created again while the batch was") as caught:
        world.commit(writer, message)
    assert caught.value.remedy is Remedy.AGAIN
    assert values(world.broker, "orders") == {}
    again = world.planned()
    world.commit(again, again.write(iter([pa.record_batch(rows)])))
    assert values(world.broker, "orders") == {str(number): 1 for number in range(20)}


@pytest.mark.parametrize("world", [WAYS["a batch write"]], indirect=True)
def test_one_that_has_grown_is_written(world):
    """As between the tasks of a stream and its commit: what is planned goes where it was planned for."""
    writer = world.planned()
    message = writer.write(iter([pa.record_batch(KEYED)]))
    add_partitions(client_for(world.options.client), "orders", 5)
    world.commit(writer, message)
    assert values(world.broker, "orders") == {str(number): 1 for number in range(20)}


@pytest.mark.parametrize(
    ("world", "asked"), [(WAYS["a stream"], 0), (WAYS["a batch write"], 1), (WAYS["a KafkaSink"], 1)], indirect=["world"]
)
def test_who_knows_the_topic_of_this_moment_asks_nobody(world, asked, monkeypatch):
    """And who does not asks once, for a batch that has rows."""
    from chaffinch.spark import target

    seen, ask = [], target.as_they_are_now
    monkeypatch.setattr(target, "as_they_are_now", lambda *given: (seen.append(given), ask(*given))[1])
    for rows in (KEYED, pa.table(KEYED).slice(0, 0).to_pydict()):
        writer = world.planned()
        world.commit(writer, writer.write(iter([pa.record_batch(rows, schema=pa.table(KEYED).schema)])))
    assert len(seen) == asked
