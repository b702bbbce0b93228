"""Admin: each method on a broker, and each with an argument that is wrong in itself."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaffinch import Consumer, EmbeddedBroker, Producer, errors
from chaffinch.admin import Admin, ScramCredential, UnknownGroup, UnknownTopic, User
from chaffinch.identifiers import TopicPartition

USERS = {"writer": "secret"}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker(brokers=2, default_replication_factor=2) as broker:
        yield broker


@pytest.fixture(scope="module")
def admin(broker: EmbeddedBroker) -> Iterator[Admin]:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        yield admin


@pytest.fixture
def topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> str:
    """A topic of the test with two partitions, and two records in the first one."""
    name = str(request.node.name).replace("[", "-").rstrip("]")
    broker.create_topic(name, 2)
    with Producer(bootstrap_servers=broker.bootstrap_servers) as producer:
        for number in range(2):
            producer.send(name, b"%d" % number, partition=0, timestamp_ms=1_000 * (number + 1)).result(10)
    return name


def first(topic: str) -> TopicPartition:
    return TopicPartition(topic, 0)


class TestTopics:
    def test_created_topic_is_described_listed_and_deleted(self, admin: Admin) -> None:
        made = admin.create_topic("made", partitions=3, replication_factor=1, configs={"retention.ms": 5, "cleanup.policy": "compact"})
        assert (made.topic.name, len(made.topic.partitions), made.topic.replication_factor) == ("made", 3, 1)
        assert all(part.leader >= 0 for part in made.topic.partitions)
        assert (made.configs["retention.ms"].value, made.configs["cleanup.policy"].value) == ("5", "compact")
        assert "made" in [found.name for found in admin.list_topics()]
        assert [found.name for found in admin.find_topics(["made", "made"])] == ["made"]
        admin.delete_topics(["made"])
        assert "made" not in [found.name for found in admin.list_topics()]
        with pytest.raises(errors.UnknownTopicOrPartitionException, match="topic 'made': it does not exist"):
            admin.delete_topics(["made"])
        admin.delete_topics([])

    def test_defaults_of_a_new_topic_are_those_of_the_broker(self, admin: Admin) -> None:
        made = admin.create_topic("by-default").topic
        assert (len(made.partitions), made.replication_factor) == (1, 2)
        with pytest.raises(errors.TopicExistsException):
            admin.create_topic("by-default")
        with pytest.raises(errors.InvalidReplicationFactorException):
            admin.create_topic("too-many-replicas", replication_factor=3)
        with pytest.raises(errors.InvalidTopicException):
            admin.create_topic("no/name")
        with pytest.raises(errors.InvalidConfigurationException):
            admin.create_topic("wrong", configs={"retention.ms": "x"})

    def test_description_has_offsets(self, admin: Admin, topic: str) -> None:
        (found,) = admin.describe_topics([topic])
        assert [(part.first_offset, part.end_offset) for part in found.topic.partitions] == [(0, 2), (0, 0)]
        assert topic in [each.topic.name for each in admin.describe_topics()]

    def test_unknown_topic_names_the_nearest(self, admin: Admin, topic: str) -> None:
        for call in (admin.find_topics, admin.describe_topics):
            with pytest.raises(UnknownTopic, match=f"'{topic}x' does not exist; the nearest is '{topic}'"):
                call([f"{topic}x"])

    def test_internal_topics_can_be_left_out(self, admin: Admin, topic: str) -> None:
        admin.commit_offsets("for-internal-topic", {first(topic): 0})
        internal = [found.name for found in admin.list_topics() if found.is_internal]
        assert not [found.name for found in admin.list_topics(with_internal=False) if found.name in internal]

    def test_partitions_are_added(self, admin: Admin, topic: str) -> None:
        admin.add_partitions(topic, 4, is_dry_run=True)
        assert len(admin.find_topics([topic])[0].partitions) == 2
        admin.add_partitions(topic, 4)
        assert len(admin.find_topics([topic])[0].partitions) == 4
        with pytest.raises(errors.InvalidPartitionsException):
            admin.add_partitions(topic, 4)


class TestConfigs:
    def test_topic_configs_change_together_or_not_at_all(self, admin: Admin, topic: str) -> None:
        admin.alter_topic_configs(topic, {"retention.ms": 1000, "unclean.leader.election.enable": True})
        admin.alter_topic_configs(topic, {"max.message.bytes": "2000"}, deleted=["retention.ms"])
        found = admin.describe_topic_configs([topic])[topic]
        assert (found["max.message.bytes"].value, found["max.message.bytes"].source) == ("2000", "topic")
        assert (found["unclean.leader.election.enable"].value, found["retention.ms"].source) == ("true", "default")
        with pytest.raises(errors.InvalidConfigurationException):
            admin.alter_topic_configs(topic, {"max.message.bytes": 3000, "retention.ms": "x"})
        assert admin.describe_topic_configs([topic])[topic]["max.message.bytes"].value == "2000"
        assert admin.describe_topic_configs([]) == {}
        with pytest.raises(errors.UnknownTopicOrPartitionException):
            admin.describe_topic_configs(["missing"])

    def test_node_configs_override_those_of_all_nodes(self, admin: Admin) -> None:
        def found() -> tuple[str | None, str]:
            entry = admin.describe_node_configs(1)["max.connections"]
            return entry.value, entry.source

        admin.alter_node_configs(None, {"num.partitions": 1, "max.connections": 100})
        assert found() == ("100", "cluster, changed")
        admin.alter_node_configs(1, {"max.connections": 200})
        assert found() == ("200", "broker, changed")
        admin.alter_node_configs(1, {}, deleted=["max.connections"])
        assert found() == ("100", "cluster, changed")
        with pytest.raises((errors.InvalidRequestException, errors.InvalidConfigurationException)):
            admin.alter_node_configs(0, {"log.dirs": "/elsewhere"})
        for call in (lambda: admin.describe_node_configs(7), lambda: admin.alter_node_configs(7, {"max.connections": 1})):
            with pytest.raises(errors.BrokerNotAvailableException):
                call()


class TestOffsetsAndRecords:
    def test_offsets_by_position_and_time(self, admin: Admin, topic: str) -> None:
        both = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        assert admin.earliest_offsets(both) == {both[0]: 0, both[1]: 0}
        assert admin.latest_offsets(iter(both)) == {both[0]: 2, both[1]: 0}
        assert admin.offsets_at(both, 1_001) == {both[0]: 1, both[1]: None}
        missing = [TopicPartition(topic, 9)]
        for call in (admin.earliest_offsets, admin.latest_offsets, lambda tps: admin.offsets_at(tps, 0), admin.describe_producers):
            with pytest.raises(errors.UnknownTopicOrPartitionException):
                call(missing)

    def test_latest_committed_offset_is_before_open_transactions(self, admin: Admin, broker: EmbeddedBroker, topic: str) -> None:
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"open", partition=0).result(10)
            assert admin.latest_offsets([first(topic)]) == {first(topic): 3}
            assert admin.latest_offsets([first(topic)], isolation="read_committed") == {first(topic): 2}
            producer.abort_transaction()

    def test_deleted_records_are_gone(self, admin: Admin, broker: EmbeddedBroker, topic: str) -> None:
        assert admin.delete_records({first(topic): 1}) == {first(topic): 1}
        assert broker.read(topic)["value"].to_pylist() == [b"1"]
        assert admin.delete_records({first(topic): None, TopicPartition(topic, 1): 0}) == {first(topic): 2, TopicPartition(topic, 1): 0}
        assert broker.read(topic).num_rows == 0
        assert admin.delete_records({}) == {}
        with pytest.raises(errors.OffsetOutOfRangeException, match=f"{topic}-0: .*the offset is beyond the end of the partition"):
            admin.delete_records({first(topic): 3})
        with pytest.raises(errors.UnknownTopicOrPartitionException):
            admin.delete_records({TopicPartition(topic, 9): None})
        admin.alter_topic_configs(topic, {"cleanup.policy": "compact"})
        with pytest.raises(errors.PolicyViolationException, match=r"add delete to its cleanup\.policy"):
            admin.delete_records({first(topic): None})


class TestGroups:
    def test_group_is_listed_and_described_with_lag(self, admin: Admin, broker: EmbeddedBroker, topic: str) -> None:
        with Consumer(bootstrap_servers=broker.bootstrap_servers, group_id=topic, auto_offset_reset="earliest") as consumer:
            consumer.subscribe([topic])
            while not consumer.poll(10):
                pass
            consumer.commit({first(topic): 1})
            assert topic in [found.group for found in admin.list_groups(states=["stable"], types=["Classic"])]
            (found,) = admin.describe_groups([topic])
            assert (found.offsets[0].committed, found.offsets[0].end, found.offsets[0].lag) == (1, 2, 1)
            assert [member.partitions for member in found.members] == [(TopicPartition(topic, 0), TopicPartition(topic, 1))]
            with pytest.raises(errors.GroupNotEmptyException):
                admin.reset_offsets(topic, to="earliest")
            with pytest.raises(errors.GroupNotEmptyException):
                admin.delete_groups([topic])
            with pytest.raises(errors.UnknownMemberIdException):
                admin.commit_offsets(topic, {first(topic): 0})
            with pytest.raises(errors.GroupSubscribedToTopicException):
                admin.delete_offsets(topic, [first(topic)])
        assert topic in [each.listing.group for each in admin.describe_groups()]
        admin.delete_groups([topic])
        assert topic not in [each.group for each in admin.list_groups()]
        admin.delete_groups([])
        with pytest.raises(UnknownGroup):
            admin.delete_groups([topic])
        with pytest.raises(UnknownGroup):
            admin.describe_groups([topic])

    def test_offsets_of_a_group_are_set_and_deleted(self, admin: Admin, topic: str) -> None:
        both = {TopicPartition(topic, 0): 1, TopicPartition(topic, 1): 0}
        admin.commit_offsets(topic, both)
        assert {tp: found.offset for tp, found in admin.committed_offsets(topic).items()} == both
        assert list(admin.committed_offsets(topic, [first(topic)])) == [first(topic)]
        admin.delete_offsets(topic, [first(topic)])
        admin.delete_offsets(topic, [])
        assert list(admin.committed_offsets(topic)) == [TopicPartition(topic, 1)]
        assert admin.committed_offsets("no-such-group") == {}
        with pytest.raises(UnknownGroup):
            admin.delete_offsets("no-such-group", [first(topic)])
        with pytest.raises(errors.UnknownTopicOrPartitionException):
            admin.commit_offsets(topic, {TopicPartition(topic, 9): 0})

    @pytest.mark.parametrize(
        ("target", "wanted", "after"),
        [
            ({"to": "earliest"}, 0, 0),
            ({"to": "latest"}, 2, 2),
            ({"to": "current"}, 1, 1),
            ({"to_offset": 5}, 5, 2),
            ({"to_time_ms": 2_000}, 1, 1),
            ({"to_time_ms": 2_001}, 2, 2),
            ({"shift_by": -1}, 0, 0),
            ({"shift_by": 9}, 10, 2),
        ],
        ids=["earliest", "latest", "current", "offset", "time", "late", "back", "on"],
    )
    def test_offsets_are_reset(self, admin: Admin, topic: str, target: dict[str, Any], wanted: int, after: int) -> None:
        admin.commit_offsets(topic, {first(topic): 1})
        (planned,) = admin.reset_offsets(topic, **target, is_dry_run=True)
        assert (planned.topic_partition, planned.before, planned.wanted, planned.after) == (first(topic), 1, wanted, after)
        assert admin.committed_offsets(topic)[first(topic)].offset == 1
        assert admin.reset_offsets(topic, **target) == [planned]
        assert admin.committed_offsets(topic)[first(topic)].offset == after

    def test_reset_of_partitions_without_a_commit(self, admin: Admin, topic: str) -> None:
        tps = [TopicPartition(topic, 0), TopicPartition(topic, 1)]
        assert admin.reset_offsets(topic, to="earliest") == [], "there are no commits"
        assert admin.reset_offsets(topic, tps, shift_by=1) == []
        assert [reset.after for reset in admin.reset_offsets(topic, tps, to="latest")] == [2, 0]
        assert {tp: found.offset for tp, found in admin.committed_offsets(topic).items()} == {tps[0]: 2, tps[1]: 0}
        with pytest.raises(errors.UnknownTopicOrPartitionException):
            admin.reset_offsets(topic, [TopicPartition(topic, 9)], to="latest")


class TestTransactions:
    def test_open_transaction_is_described_and_aborted(self, admin: Admin, broker: EmbeddedBroker, topic: str) -> None:
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"open", partition=0).result(10)
            found = admin.describe_transaction(topic)
            assert (found.state, found.partitions) == ("Ongoing", (first(topic),))
            assert topic in [each.transactional_id for each in admin.list_transactions(states=["ongoing"], duration_min_ms=0)]
            assert [each.transactional_id for each in admin.list_transactions(producer_ids=[found.producer_id])] == [topic]
            states = admin.describe_producers([first(topic)])[first(topic)]
            assert [state.transaction_start_offset for state in states if state.producer_id == found.producer_id] == [2]
            assert admin.find_hanging_transactions([first(topic)], older_than_ms=0) == [], "its coordinator knows it"
            admin.abort_transaction(topic)
            assert admin.describe_transaction(topic).state in ("PrepareAbort", "CompleteAbort", "PrepareEpochFence", "Empty")
            with pytest.raises(errors.KafkaException):
                producer.commit_transaction()
        for call in (admin.describe_transaction, admin.abort_transaction):
            with pytest.raises(errors.TransactionalIdNotFoundException):
                call("never-used")

    def test_transaction_in_one_partition_is_aborted(self, admin: Admin, broker: EmbeddedBroker, topic: str) -> None:
        with Producer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"open", partition=0).result(10)
            with pytest.raises(errors.InvalidTxnStateException, match="open transactions start at 2"):
                admin.abort_hanging_transaction(first(topic), 1)
            aborted = admin.abort_hanging_transaction(first(topic), 2)
            assert (aborted.topic_partition, aborted.transaction_start_offset) == (first(topic), 2)
            assert admin.latest_offsets([first(topic)], isolation="read_committed") == {first(topic): 4}, "the marker ends it"
            producer.abort_transaction()


class TestUsers:
    def test_users_get_and_lose_passwords(self) -> None:
        config = {"security.protocol": "SASL_PLAINTEXT", "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"}
        with EmbeddedBroker(config=config, users=USERS) as broker:
            login: dict[str, Any] = {"bootstrap_servers": broker.bootstrap_servers, "security_protocol": "SASL_PLAINTEXT"}
            with Admin(**login, sasl_mechanism="PLAIN", sasl_username="writer", sasl_password="secret") as admin:
                before = admin.describe_users()
                admin.set_password("reader", "first")
                admin.set_password("reader", "other", mechanism="SCRAM-SHA-512", iterations=8192)
                expected = User(
                    name="reader",
                    credentials=(
                        ScramCredential(mechanism="SCRAM-SHA-256", iterations=4096),
                        ScramCredential(mechanism="SCRAM-SHA-512", iterations=8192),
                    ),
                )
                assert admin.describe_users(["reader"]) == [expected]
                assert admin.describe_users([]) == []
                with Admin(**login, sasl_mechanism="SCRAM-SHA-512", sasl_username="reader", sasl_password="other") as own:
                    assert own.describe_cluster().nodes
                admin.delete_password("reader")
                admin.delete_password("reader", mechanism="SCRAM-SHA-512")
                assert admin.describe_users() == before
                with pytest.raises(errors.ResourceNotFoundException):
                    admin.delete_password("reader")
                with pytest.raises(errors.ResourceNotFoundException, match="user 'reader' has no SCRAM credential"):
                    admin.describe_users(["reader"])


class TestNodes:
    def test_cluster_has_nodes_with_addresses(self, admin: Admin, broker: EmbeddedBroker) -> None:
        found = admin.describe_cluster()
        assert [f"{node.host}:{node.port}" for node in found.nodes] == broker.bootstrap_servers.split(",")
        assert ([node.node for node in found.nodes], found.controller in (0, 1), bool(found.cluster_id)) == ([0, 1], True, True)
        assert [(node.rack, node.is_fenced) for node in found.nodes] == [(None, False), (None, False)]

    def test_stopped_node_is_fenced(self) -> None:
        with EmbeddedBroker(brokers=2) as broker, Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
            broker.stop_node(1)
            assert [node.is_fenced for node in admin.describe_cluster().nodes] == [False, True]


TP = TopicPartition("orders", 0)
BAD: list[tuple[Callable[[Any], object], type[Exception], str]] = [
    (lambda admin: admin.find_topics("orders"), TypeError, "argument names must be a list of names, not 'orders'"),
    (lambda admin: admin.find_topics([1]), TypeError, "argument names must be a str, not 1"),
    (lambda admin: admin.describe_topics(5), TypeError, "argument names must be a list of names, not 5"),
    (lambda admin: admin.create_topic(5), TypeError, "argument name must be a str, not 5"),
    (lambda admin: admin.create_topic(""), ValueError, "argument name is empty"),
    (lambda admin: admin.create_topic("a", partitions=0), ValueError, "argument partitions must be from 1 to 2147483647, not 0"),
    (lambda admin: admin.create_topic("a", partitions="3"), TypeError, "argument partitions must be an int, not '3'"),
    (lambda admin: admin.create_topic("a", replication_factor=40_000), ValueError, "argument replication_factor must be from 1 to 32767"),
    (
        lambda admin: admin.create_topic("a", configs=["x=y"]),
        TypeError,
        "argument configs must be a mapping of names to values",
    ),
    (lambda admin: admin.create_topic("a", configs={1: "x"}), TypeError, "argument configs has the name 1, which is not a str"),
    (lambda admin: admin.create_topic("a", configs={"x": None}), TypeError, "argument configs has a value of type NoneType for x"),
    (lambda admin: admin.add_partitions("a", -1), ValueError, "argument partitions must be from 1"),
    (lambda admin: admin.delete_topics("orders"), TypeError, "argument names must be a list of names, not 'orders'"),
    (lambda admin: admin.describe_topic_configs("orders"), TypeError, "argument names must be a list"),
    (lambda admin: admin.alter_topic_configs("a", {}), ValueError, "nothing to alter: changed and deleted are empty"),
    (lambda admin: admin.alter_topic_configs("a", {"x": 1}, deleted=["x"]), ValueError, "x is in changed and in deleted"),
    (lambda admin: admin.describe_node_configs("0"), TypeError, "argument node must be an int, not '0'"),
    (lambda admin: admin.alter_node_configs(-1, {"x": 1}), ValueError, "argument node must be from 0"),
    (lambda admin: admin.earliest_offsets(TP), TypeError, r"argument partitions must be a list of TopicPartition, not TopicPartition\("),
    (lambda admin: admin.latest_offsets([("orders", -1)]), ValueError, "argument partition has the number -1"),
    (lambda admin: admin.latest_offsets([TP], isolation="committed"), ValueError, "argument isolation must be 'read_committed' or"),
    (lambda admin: admin.offsets_at([TP], -1), ValueError, "argument time_ms must be from 0"),
    (lambda admin: admin.delete_records([TP]), TypeError, "argument offsets must be a mapping of TopicPartition to offset"),
    (lambda admin: admin.delete_records({TP: -1}), ValueError, "argument offsets, for orders-0, must be from 0 to"),
    (lambda admin: admin.list_groups(states="Stable"), TypeError, "argument states must be a list, not 'Stable'"),
    (lambda admin: admin.list_groups(states=["Running"]), ValueError, "argument states has the value 'Running': it must be one of"),
    (
        lambda admin: admin.list_groups(types=["simple"]),
        ValueError,
        "argument types has the value 'simple': it must be one of",
    ),
    (lambda admin: admin.describe_groups("billing"), TypeError, "argument names must be a list"),
    (lambda admin: admin.delete_groups("billing"), TypeError, "argument names must be a list"),
    (lambda admin: admin.committed_offsets(None), TypeError, "argument group must be a str, not None"),
    (lambda admin: admin.commit_offsets("g", {TP: None}), TypeError, "argument offsets, for orders-0, must be an int, not None"),
    (lambda admin: admin.commit_offsets("g", {"orders": 1}), TypeError, "argument partition must be a TopicPartition, not 'orders'"),
    (lambda admin: admin.reset_offsets("g"), ValueError, "give one of to, to_offset, to_time_ms, shift_by"),
    (lambda admin: admin.reset_offsets("g", to="latest", shift_by=1), ValueError, "give one of to, shift_by"),
    (lambda admin: admin.reset_offsets("g", to="end"), ValueError, "argument to must be 'earliest', 'latest' or 'current', not 'end'"),
    (lambda admin: admin.reset_offsets("g", to_offset="5"), TypeError, "argument to_offset must be an int, not '5'"),
    (lambda admin: admin.reset_offsets("g", to_time_ms=-5), ValueError, "argument to_time_ms must be from 0"),
    (lambda admin: admin.delete_offsets("g", "orders"), TypeError, "argument partitions must be a list of TopicPartition, not 'orders'"),
    (lambda admin: admin.list_transactions(states=["Open"]), ValueError, "argument states has the value 'Open': it must be one of"),
    (lambda admin: admin.list_transactions(producer_ids=["x"]), TypeError, "argument producer_ids must be an int, not 'x'"),
    (lambda admin: admin.list_transactions(producer_ids=5), TypeError, "argument producer_ids must be a list of ints, not 5"),
    (lambda admin: admin.list_transactions(duration_min_ms=-1), ValueError, "argument duration_min_ms must be from 0"),
    (lambda admin: admin.describe_transaction(""), ValueError, "argument transactional_id is empty"),
    (lambda admin: admin.describe_producers(None), TypeError, "argument partitions must be a list of TopicPartition, not None"),
    (lambda admin: admin.find_hanging_transactions([TP], older_than_ms="1h"), TypeError, "argument older_than_ms must be an int, not '1h'"),
    (lambda admin: admin.abort_hanging_transaction("orders", 0), TypeError, "argument partition must be a TopicPartition, not 'orders'"),
    (lambda admin: admin.abort_transaction(5), TypeError, "argument transactional_id must be a str, not 5"),
    (lambda admin: admin.describe_users("reader"), TypeError, "argument names must be a list"),
    (lambda admin: admin.set_password("reader", ""), TypeError, r"argument password must be a str that is not empty \(not shown\)"),
    (lambda admin: admin.set_password("reader", "x", mechanism="PLAIN"), ValueError, "argument mechanism must be 'SCRAM-SHA-256' or"),
    (lambda admin: admin.set_password("reader", "x", iterations=1), ValueError, "argument iterations must be from 4096 to 16384, not 1"),
    (lambda admin: admin.delete_password("reader", mechanism="PLAIN"), ValueError, "argument mechanism must be"),
]


@pytest.mark.parametrize(("call", "kind", "says"), BAD, ids=[says[:60] for _, _, says in BAD])
def test_wrong_argument_is_refused_before_a_request(call: Callable[[Any], object], kind: type[Exception], says: str) -> None:
    with Admin(bootstrap_servers="127.0.0.1:1") as admin, pytest.raises(kind, match=f"^{says}") as refused:
        call(admin)
    assert "\n" not in str(refused.value)


def test_wrong_options_are_refused() -> None:
    with pytest.raises(errors.ConfigException, match="unknown option 'request_timeout': the nearest known one is 'request_timeout_ms'"):
        Admin(bootstrap_servers="127.0.0.1:1", request_timeout=5)  # type: ignore[call-arg]
    with pytest.raises(errors.ConfigException, match=r"option bootstrap\.servers is missing"):
        Admin()


def test_option_without_effect_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    Admin({"bootstrap.servers": "127.0.0.1:1", "retries": 3}).close()
    assert "option retries is known to Apache Kafka and without effect here" in caplog.text


def test_no_broker_is_a_timeout() -> None:
    with Admin(bootstrap_servers="127.0.0.1:1", default_api_timeout_ms=50) as admin, pytest.raises(errors.TimeoutException):
        admin.describe_cluster()


def test_closed_admin_refuses_calls(broker: EmbeddedBroker) -> None:
    with Admin(bootstrap_servers=broker.bootstrap_servers) as admin:
        assert admin.describe_cluster().nodes
    admin.close()
    with pytest.raises(errors.IllegalStateException, match="closed"):
        admin.describe_cluster()


def test_admin_is_shown_with_its_servers_and_not_pickled() -> None:
    with Admin(bootstrap_servers="a:1,b:2") as admin:
        assert repr(admin) == "<Admin of a:1,b:2>"
        with pytest.raises(TypeError, match="an Admin cannot be pickled"):
            pickle.dumps(admin)
