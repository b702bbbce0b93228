"""EmbeddedBroker as a program uses it; the clients are sockets of our own, so that nothing but the broker is under test."""

from __future__ import annotations

import logging
import os
import pickle
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from chaffinch import EmbeddedBroker, errors
from chaffinch.broker.core.events import LogLine
from chaffinch.errors import ConfigException
from chaffinch.identifiers import ProducerIdentity
from chaffinch.protocol.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from chaffinch.protocol.messages.metadata import MetadataRequest
from chaffinch.records.compression import Compression
from chaffinch.storage.file_system import AlreadyLocked
from tests.broker.batches import batch_of
from tests.broker.core_client import produce_request
from tests.broker.socket_client import SocketClient

PRODUCER = ProducerIdentity(7, 0)


def produce(broker: EmbeddedBroker, *values: bytes, topic: str = "orders", **options: Any) -> Any:
    with SocketClient(broker.bootstrap_servers) as client:
        return client.ask(produce_request(topic, batch_of(*values, **options))).responses[0].partition_responses[0]


def values(broker: EmbeddedBroker, topic: str = "orders", isolation: Any = "read_committed") -> list[bytes]:
    return broker.read(topic, isolation)["value"].to_pylist()


def test_topics_argument_accepts_every_form() -> None:
    topics = {"a": None, "b": 3, "c": {"partitions": 2, "cleanup.policy": ["compact", "delete"], "preallocate": True}}
    with EmbeddedBroker(topics=topics) as broker:
        assert broker.topics() == {"a": 1, "b": 3, "c": 2}
        broker.create_topic("d", 2, config={"max.message.bytes": 100})
        assert broker.topics()["d"] == 2
    with EmbeddedBroker(topics=["x", "y"]) as broker:
        assert broker.topics() == {"x": 1, "y": 1}


def test_errors_are_exceptions_of_the_public_tree() -> None:
    with EmbeddedBroker(topics=["a"]) as broker:
        with pytest.raises(errors.TopicExistsException, match="already exists"):
            broker.create_topic("a")
        with pytest.raises(errors.InvalidTopicException):
            broker.create_topic("a/b")
        with pytest.raises(errors.InvalidConfigurationException, match="retention"):
            broker.create_topic("b", config={"retention.mss": 1})
        with pytest.raises(errors.UnknownTopicOrPartitionException):
            broker.read("missing")
        with pytest.raises(ConfigException, match="drop_before"):
            broker.faults.add(action="explode")  # type: ignore[arg-type]
    with pytest.raises(ConfigException, match=r"num\.partitions"):
        EmbeddedBroker(config={"num.partition": 1})


@pytest.mark.parametrize(
    ("config", "delay_ms"),
    [
        ({}, 0),
        ({"group.initial.rebalance.delay.ms": 3000}, 3000),
        ({"group_initial_rebalance_delay_ms": 3000}, 3000),
        ({"socket.busy.poll.us": 10}, 0),
    ],
)
def test_first_rebalance_has_no_delay_unless_it_is_given(config: dict[str, Any], delay_ms: int) -> None:
    with EmbeddedBroker(config=config) as broker:
        settings = broker._call(lambda core: core.state.settings)
        assert settings["group.initial.rebalance.delay.ms"] == delay_ms
        assert settings["socket.busy.poll.us"] == config.get("socket.busy.poll.us", 0)


def test_read_returns_all_columns_in_order() -> None:
    with EmbeddedBroker(topics={"orders": 2}) as broker:
        assert broker.read("orders").num_rows == 0
        produce(broker, b"a", b"b", keys=[b"k", None], compression=Compression.ZSTD)
        produce(broker, b"c", timestamps=[5])
        table = broker.read("orders")
        assert table.column_names == ["partition", "offset", "key", "value", "timestamp", "headers"]
        assert table["offset"].to_pylist() == [0, 1, 2]
        assert table["key"].to_pylist() == [b"k", None, b"k"]
        assert table["value"].to_pylist() == [b"a", b"b", b"c"]
        assert broker.read("orders").schema == EmbeddedBrokerSchema.of_nothing()


@pytest.mark.parametrize("isolation", ["read_committed", "read_uncommitted"])
@pytest.mark.parametrize(("before", "left"), [(0, [0, 1, 2, 3, 4]), (2, [2, 3, 4]), (3, [3, 4]), (4, [4]), (5, [])])
def test_read_omits_deleted_records(before: int, left: list[int], isolation: Any) -> None:
    """Nor the deleted records that a batch still contains."""
    with EmbeddedBroker(topics=["orders"]) as broker:
        produce(broker, b"0", b"1", b"2")
        produce(broker, b"3", b"4", compression=Compression.ZSTD)
        requested = DeleteRecordsTopic(name="orders", partitions=[DeleteRecordsPartition(partition_index=0, offset=before)])
        with SocketClient(broker.bootstrap_servers) as client:
            answer = client.ask(DeleteRecordsRequest(topics=[requested], timeout_ms=1000))
        assert answer.topics[0].partitions[0].low_watermark == before
        assert broker.read("orders", isolation)["offset"].to_pylist() == left
        assert values(broker, isolation=isolation) == [b"%d" % offset for offset in left]


class EmbeddedBrokerSchema:
    """An empty topic has the same columns as a full one."""

    @staticmethod
    def of_nothing() -> Any:
        with EmbeddedBroker(topics=["empty"]) as broker:
            return broker.read("empty").schema


@pytest.mark.parametrize("kill", [True, False])
@pytest.mark.parametrize("on_disk", [True, False])
def test_restart_keeps_acknowledged_records(tmp_path: Path, on_disk: bool, kill: bool) -> None:
    with EmbeddedBroker(topics=["orders"], data_dir=str(tmp_path) if on_disk else None) as broker:
        address = broker.bootstrap_servers
        produce(broker, b"a", identity=PRODUCER, sequence=0)
        broker.restart(kill=kill)
        assert broker.bootstrap_servers == address
        assert values(broker) == [b"a"]
        again = produce(broker, b"a", identity=PRODUCER, sequence=0)
        assert (again.error_code, again.base_offset) == (0, 0)
        assert produce(broker, b"b", identity=PRODUCER, sequence=1).base_offset == 1
        assert values(broker) == [b"a", b"b"]


def test_data_directory_outlives_the_object(tmp_path: Path) -> None:
    with EmbeddedBroker(topics=["orders"], data_dir=str(tmp_path)) as broker:
        produce(broker, b"a")
        with pytest.raises(AlreadyLocked):
            EmbeddedBroker(data_dir=str(tmp_path))
    with EmbeddedBroker(topics={"orders": 5}, data_dir=str(tmp_path)) as broker:
        assert broker.topics() == {"orders": 1}, "what is there stays as it is"
        assert values(broker) == [b"a"]


def test_batch_resent_after_a_lost_response_is_stored_once() -> None:
    """The connection is cut after the append; without the broker's duplicate check the record would be there twice."""
    with EmbeddedBroker(topics=["orders"]) as broker:
        broker.faults.add(action="drop_after")
        with pytest.raises(ConnectionError):
            produce(broker, b"a", identity=PRODUCER, sequence=0)
        assert values(broker) == [b"a"]
        assert produce(broker, b"a", identity=PRODUCER, sequence=0).error_code == 0
        assert values(broker) == [b"a"]
        assert broker.counters("orders")["DuplicateBatchesPerSec"] == 1


def test_faults_can_be_cleared() -> None:
    with EmbeddedBroker(topics=["orders"]) as broker:
        broker.faults.add(error="NOT_ENOUGH_REPLICAS", count=100)
        assert produce(broker, b"a").error_code == 19
        broker.faults.clear()
        assert produce(broker, b"a").error_code == 0


def test_each_declared_node_listens() -> None:
    with EmbeddedBroker(topics={"orders": {"partitions": 3, "replication": 3}}, brokers=3) as broker:
        addresses = broker.bootstrap_servers.split(",")
        assert len(set(addresses)) == 3
        leaders: dict[int, int] = {}
        for node_id, address in enumerate(addresses):
            with SocketClient(address) as client:
                answer = client.ask(MetadataRequest(topics=None))
                assert [f"{node.host}:{node.port}" for node in answer.brokers] == addresses
                leaders = {partition.partition_index: partition.leader_id for partition in answer.topics[0].partitions}
                assert sorted(leaders.values()) == [0, 1, 2]
                for partition, leader in leaders.items():
                    request = produce_request("orders", batch_of(b"a"), partition=partition)
                    code = client.ask(request).responses[0].partition_responses[0].error_code
                    assert code == (0 if leader == node_id else 6)


def test_broker_can_be_called_from_many_threads() -> None:
    with EmbeddedBroker() as broker, ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda number: broker.create_topic(f"t{number}"), range(40)))
        assert len(broker.topics()) == 40
        list(threads.map(lambda number: produce(broker, b"x", topic=f"t{number}"), range(40)))
        assert broker.counters()["MessagesInPerSec"] == 40


def test_broker_cannot_be_pickled() -> None:
    with EmbeddedBroker() as broker:
        for it in (broker, broker.faults):
            with pytest.raises(TypeError, match=r"^an EmbeddedBroker cannot be pickled: give other processes its bootstrap_servers$"):
                pickle.dumps(it)


def test_closed_broker_raises_runtime_error() -> None:
    broker = EmbeddedBroker()
    broker.close()
    broker.close()
    with pytest.raises(RuntimeError, match="closed"):
        broker.topics()


def _close_on_the_way_out(broker: EmbeddedBroker) -> None:
    with broker:
        raise ValueError("of the body")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (EmbeddedBroker.topics, "in the process that created it, not in a forked child"),
        (EmbeddedBroker.restart, "in the process that created it, not in a forked child"),
        (lambda broker: broker.faults.clear(), "in the process that created it, not in a forked child"),
        (_close_on_the_way_out, "ValueError('of the body')"),
    ],
)
def test_forked_child_gets_an_error_and_leaves_the_broker_running(call: Callable[[EmbeddedBroker], object], message: str) -> None:
    with EmbeddedBroker(topics=["orders"]) as broker:
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            signal.alarm(10)  # Ends the child where the call waits for a thread that only the parent has.
            try:
                call(broker)
            except BaseException as error:
                os.write(writer, repr(error).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as pipe:
            assert message in pipe.read()
        os.waitpid(child, 0)
        assert produce(broker, b"a").error_code == 0


def test_flush_policy_always_acknowledges_over_sockets(tmp_path: Path) -> None:
    with EmbeddedBroker(topics=["orders"], data_dir=str(tmp_path), config={"flush.policy": "always"}) as broker:
        with SocketClient(broker.bootstrap_servers) as client:
            for number in range(20):
                client.send(produce_request("orders", batch_of(b"%d" % number)))
            offsets = [client.receive().responses[0].partition_responses[0].base_offset for _ in range(20)]
        assert offsets == list(range(20))


def test_routine_lines_are_logged_at_info(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "chaffinch.broker"), EmbeddedBroker(topics=["orders"]) as broker:
        broker._thread.call(
            lambda: broker._running._effect_runner.run([LogLine("a member is removed", is_routine=True), LogLine("refused: 100%")])
        )
    levels = {record.getMessage(): record.levelname for record in caplog.records}
    assert (levels["a member is removed"], levels["refused: 100%"]) == ("INFO", "WARNING")
