"""Results of Admin."""

from typing import assert_type

from chaffinch import TopicPartition
from chaffinch.admin import Admin, Cluster, CommittedOffset, ConfigEntry, GroupDescription, Reset, Topic, TopicDescription, User

ORDERS = TopicPartition("orders", 0)


def results_have_types(admin: Admin) -> None:
    assert_type(admin.list_topics(), list[Topic])
    assert_type(admin.describe_topics(), list[TopicDescription])
    assert_type(admin.create_topic("orders", partitions=3, configs={"retention.ms": 1000, "cleanup.policy": "compact"}), TopicDescription)
    assert_type(admin.describe_topic_configs(["orders"])["orders"]["retention.ms"], ConfigEntry)
    assert_type(admin.describe_groups(["billing"]), list[GroupDescription])
    assert_type(admin.describe_groups()[0].offsets[0].lag, int | None)
    assert_type(admin.committed_offsets("billing"), dict[TopicPartition, CommittedOffset])
    assert_type(admin.reset_offsets("billing", to="earliest"), list[Reset])
    assert_type(admin.delete_records({ORDERS: None}), dict[TopicPartition, int])
    assert_type(admin.describe_users(), list[User])
    assert_type(admin.describe_cluster(), Cluster)


def arguments_have_types(admin: Admin) -> None:
    admin.create_topic("orders", partition=3)  # wrong
    admin.create_topic("orders", partitions="3")  # wrong
    admin.reset_offsets("billing", to="end")  # wrong
    admin.latest_offsets([ORDERS], isolation="committed")  # wrong
    admin.delete_records({"orders": 5})  # wrong
    admin.set_password("reader", "secret", mechanism="PLAIN")  # wrong
    admin.offsets_at([ORDERS], 0)[ORDERS] + 1  # wrong
    admin.list_consumer_groups()  # wrong
