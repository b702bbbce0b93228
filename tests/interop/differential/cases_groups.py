"""Cases: groups of both protocols, and their offsets."""

from __future__ import annotations

from typing import Any

from tests.interop.differential.peer import Peer
from tests.interop.differential.requests import API_BY_NAME, request

ASSIGNMENT_SECONDS = 3.0
PROTOCOLS = [{"name": "range", "metadata": b"\0\1\0\0\0\1\0\6orders\xff\xff\xff\xff\xff\xff\xff\xff"}]


def join(group: str, member: str = "", **more: Any) -> Any:
    values = {"session_timeout_ms": 10_000, "rebalance_timeout_ms": 10_000, "protocol_type": "consumer", "protocols": PROTOCOLS, **more}
    return request("JoinGroup", group_id=group, member_id=member, **values)


def classic(peer: Peer) -> None:
    for version in API_BY_NAME["FindCoordinator"].served:
        keys = {"coordinator_keys": ["g"]} if version >= 4 else {"key": "g"}
        peer.ask(f"coordinator v{version}", request("FindCoordinator", **keys), version)
    peer.ask("coordinator: unknown kind", request("FindCoordinator", coordinator_keys=["g"], key_type=7), 4)
    peer.ask("coordinator: empty group", request("FindCoordinator", coordinator_keys=[""], key_type=0), 4)
    peer.ask("coordinator: transaction", request("FindCoordinator", coordinator_keys=["t"], key_type=1), 4)
    peer.ask("join: no group", join(""), 9)
    peer.ask("join: session too short", join("g", session_timeout_ms=1), 9)
    peer.ask("join: session too long", join("g", session_timeout_ms=99_999_999), 9)
    for version in API_BY_NAME["JoinGroup"].served:
        peer.ask(f"join: unknown member v{version}", join("g", "nobody"), version)
    peer.ask("join: no protocols", join("g", protocols=[]), 9)
    first = peer.ask("join: first asks for an id", join("g"), 9)
    joined = peer.ask("join: first", join("g", first.member_id), 9)
    generation, member = joined.generation_id, joined.member_id
    peer.ask("join: other kind", join("g", protocol_type="connect"), 9)
    peer.ask("heartbeat: before sync", request("Heartbeat", group_id="g", generation_id=generation, member_id=member), 4)
    assignment = [{"member_id": member, "assignment": b"mine"}]
    sync = {"group_id": "g", "generation_id": generation, "member_id": member, "assignments": assignment}
    peer.ask("sync: other protocol", request("SyncGroup", **sync, protocol_type="consumer", protocol_name="sticky"), 5)
    peer.ask("sync: wrong generation", request("SyncGroup", **{**sync, "generation_id": 99}), 3)
    peer.ask("sync", request("SyncGroup", **sync, protocol_type="consumer", protocol_name="range"), 5)
    peer.ask("heartbeat", request("Heartbeat", group_id="g", generation_id=generation, member_id=member), 4)
    peer.ask("heartbeat: wrong generation", request("Heartbeat", group_id="g", generation_id=99, member_id=member), 4)
    peer.ask("heartbeat: unknown member", request("Heartbeat", group_id="g", generation_id=generation, member_id="nobody"), 4)
    peer.ask("heartbeat: unknown group", request("Heartbeat", group_id="nothing", generation_id=1, member_id="nobody"), 4)
    _offsets(peer, generation, member)
    for version in API_BY_NAME["DescribeGroups"].served:
        peer.ask(f"describe groups v{version}", request("DescribeGroups", groups=["g", "nothing"]), version)
    for version in API_BY_NAME["ListGroups"].served:
        peer.ask(f"list groups v{version}", request("ListGroups"), version)
    peer.ask("list groups: stable", request("ListGroups", states_filter=["Stable"]), 5)
    peer.ask("list groups: by type", request("ListGroups", types_filter=["consumer"]), 5)
    peer.ask("delete groups: not empty", request("DeleteGroups", groups_names=["g", "nothing"]), 2)
    leave = {"group_id": "g", "members": [{"member_id": member}, {"member_id": "nobody"}]}
    peer.ask("leave", request("LeaveGroup", **leave), 5)
    peer.ask("leave: unknown group", request("LeaveGroup", group_id="nothing", members=[{"member_id": "x"}]), 5)
    peer.ask("describe groups: empty", request("DescribeGroups", groups=["g"]), 5)
    peer.ask(
        "delete offsets", request("OffsetDelete", group_id="g", topics=[{"name": "orders", "partitions": [{"partition_index": 0}]}]), 0
    )
    peer.ask("delete offsets: unknown group", request("OffsetDelete", group_id="nothing", topics=[]), 0)
    peer.ask("delete groups", request("DeleteGroups", groups_names=["g"]), 2)
    peer.ask("describe groups: dead", request("DescribeGroups", groups=["g"]), 6)


def commit(group: str, generation: int, member: str, topic: str = "orders", partition: int = 0, metadata: str = "m") -> Any:
    asked = {"partition_index": partition, "committed_offset": 5, "committed_leader_epoch": 0, "committed_metadata": metadata}
    values = {"group_id": group, "generation_id_or_member_epoch": generation, "member_id": member}
    return request("OffsetCommit", topics=[{"name": topic, "partitions": [asked]}], **values)


def _offsets(peer: Peer, generation: int, member: str) -> None:
    for version in API_BY_NAME["OffsetCommit"].served:
        if version <= 9:
            peer.ask(f"commit v{version}", commit("g", generation, member), version)
    peer.ask("commit: wrong generation", commit("g", 99, member), 8)
    peer.ask("commit: unknown member", commit("g", generation, "nobody"), 8)
    peer.ask("commit: no member in a living group", commit("g", -1, ""), 8)
    peer.ask("commit: missing topic", commit("g", generation, member, "missing"), 8)
    peer.ask("commit: missing partition", commit("g", generation, member, "orders", 99), 8)
    peer.ask("commit: long metadata", commit("g", generation, member, metadata="m" * 5000), 8)
    peer.ask("commit: simple", commit("simple", -1, ""), 8)
    peer.ask("commit: generation without group", commit("other", 3, ""), 8)
    peer.ask("commit: no group", commit("", -1, ""), 8)
    wanted = [{"name": "orders", "partition_indexes": [0, 1]}, {"name": "missing", "partition_indexes": [0]}]
    for version in API_BY_NAME["OffsetFetch"].served:
        if 1 <= version <= 7:
            peer.ask(f"offsets of a group v{version}", request("OffsetFetch", group_id="g", topics=wanted), version)
        elif version <= 9:
            peer.ask(f"offsets of a group v{version}", request("OffsetFetch", groups=[{"group_id": "g", "topics": wanted}]), version)
    peer.ask("offsets of a group: all", request("OffsetFetch", groups=[{"group_id": "g", "topics": None}]), 8)
    peer.ask("offsets of a group: unknown", request("OffsetFetch", groups=[{"group_id": "nothing", "topics": None}]), 8)
    stale = [{"group_id": "g", "member_id": "nobody", "member_epoch": 7, "topics": None}]
    peer.ask("offsets of a group: member epoch", request("OffsetFetch", groups=stale), 9)


def beat(group: str, member: str, epoch: int, **more: Any) -> Any:
    return request("ConsumerGroupHeartbeat", group_id=group, member_id=member, member_epoch=epoch, **more)


def consumer(peer: Peer) -> None:
    """KIP-848."""
    member = "AAAAAAAAAAAAAAAAAAAAAA"
    first = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": ["orders"], "topic_partitions": []}
    peer.ask("beat: no group", beat("", member, 0, **first), 1)
    peer.ask("beat: no subscription", beat("c", member, 0, rebalance_timeout_ms=1000, topic_partitions=[]), 1)
    peer.ask("beat: unknown assignor", beat("c", member, 0, **first, server_assignor="mine"), 1)
    peer.ask("beat: unknown group", beat("nothing", member, 5), 1)
    peer.ask("beat: wrong pattern", beat("c", member, 0, **{**first, "subscribed_topic_names": None}, subscribed_topic_regex="("), 1)
    epoch = peer.ask("beat: join", beat("c", member, 0, **first), 1).member_epoch
    peer.ask("beat: go on", beat("c", member, epoch), 1)
    peer.ask("beat: future epoch", beat("c", member, 99), 1)
    peer.ask("beat: unknown member", beat("c", "BBBBBBBBBBBBBBBBBBBBBB", 1), 1)
    peer.ask("beat: classic join", join("c", ""), 9)
    peer.ask("consumer: describe", request("ConsumerGroupDescribe", group_ids=["c", "nothing", "simple"]), 1)
    peer.ask("consumer: described as classic", request("DescribeGroups", groups=["c"]), 5)
    peer.ask("consumer: commit", commit("c", epoch, member), 9)
    peer.ask("consumer: commit, wrong epoch", commit("c", 9, member), 9)
    peer.ask("consumer: commit v8", commit("c", epoch, member), 8)
    peer.ask("consumer: list", request("ListGroups", types_filter=["consumer"]), 5)
    peer.ask("consumer: delete", request("DeleteGroups", groups_names=["c"]), 2)
    peer.ask("beat: leave", beat("c", member, -1), 1)
    peer.ask("beat: after leaving", beat("c", member, epoch), 1)


def static(peer: Peer) -> None:
    """A static member of the classic protocol: it comes back, is fenced, is sent away."""
    me = {"group_instance_id": "i"}
    joined = peer.ask("static: join", join("s", **me), 9)
    generation, member = joined.generation_id, joined.member_id
    mine = {"group_id": "s", "generation_id": generation}
    protocol = {"protocol_type": "consumer", "protocol_name": "range"}
    assignments = [{"member_id": member, "assignment": b"mine"}]
    peer.ask("static: sync without protocol", request("SyncGroup", **mine, member_id=member, **me, assignments=assignments), 5)
    peer.ask("static: sync", request("SyncGroup", **mine, **protocol, member_id=member, **me, assignments=assignments), 5)
    for label, version in (("with skip", 9), ("without skip", 8)):
        back = peer.ask(f"static: back {label}", join("s", **me), version)
        peer.ask(f"static: sync {label}", request("SyncGroup", **mine, **protocol, member_id=back.member_id, **me), 5)
        peer.ask(f"static: old id {label}", request("Heartbeat", **mine, member_id=member, **me), 4)
        peer.ask(f"static: new id {label}", request("Heartbeat", **mine, member_id=back.member_id, **me), 4)
    peer.ask("static: unknown instance", request("Heartbeat", **mine, member_id=back.member_id, group_instance_id="j"), 4)
    peer.ask("static: join with the old id", join("s", member, **me), 9)
    peer.ask("static: commit with the old id", _static_commit(generation, member), 8)
    peer.ask("static: commit", _static_commit(generation, back.member_id), 8)
    peer.ask("static: delete offsets it reads", _delete_offsets("s"), 0)
    peer.ask("static: delete offsets nobody reads", _delete_offsets("s", "compacted"), 0)
    peer.ask("static: delete offsets of no topic", _delete_offsets("s", "missing"), 0)
    for label, identity in (("wrong member", {"member_id": member}), ("nobody", {"member_id": "", "group_instance_id": "j"})):
        peer.ask(f"static: leave, {label}", request("LeaveGroup", group_id="s", members=[{**me, **identity}]), 5)
    peer.ask("static: leave by instance", request("LeaveGroup", group_id="s", members=[{"member_id": "", **me}]), 5)
    peer.ask("static: delete offsets of an empty group", _delete_offsets("s"), 0)
    peer.ask("static: offsets left", request("OffsetFetch", groups=[{"group_id": "s", "topics": None}]), 8)
    peer.ask("static: commit to an empty group", commit("s", -1, ""), 8)
    peer.ask("static: commit of a generation that was", commit("s", generation, ""), 8)


def _static_commit(generation: int, member: str) -> Any:
    return commit("s", generation, member).replace(group_instance_id="i")


def _delete_offsets(group: str, topic: str = "orders") -> Any:
    return request("OffsetDelete", group_id=group, topics=[{"name": topic, "partitions": [{"partition_index": 0}]}])


def consumer_static(peer: Peer) -> None:
    """KIP-848 with two members, one of them static, on a topic of three partitions."""
    one, two, three = "AAAAAAAAAAAAAAAAAAAAAA", "CCCCCCCCCCCCCCCCCCCCCC", "DDDDDDDDDDDDDDDDDDDDDD"
    first = {"rebalance_timeout_ms": 10_000, "subscribed_topic_names": ["orders"], "topic_partitions": []}
    me = {"instance_id": "i"}
    epoch = peer.ask("pair: static joins", beat("p", one, 0, **first, **me), 1).member_epoch
    peer.ask("pair: static goes on", beat("p", one, epoch, **me), 1)
    peer.ask("pair: instance in use", beat("p", two, 0, **first, **me), 1)
    peer.ask("pair: unknown instance", beat("p", one, epoch, instance_id="j"), 1)
    peer.ask("pair: leaves for a while", beat("p", one, -2, **me), 1)
    peer.ask("pair: dynamic leaves for a while", beat("p", one, -2), 1)
    epoch = peer.ask("pair: back under another id", beat("p", two, 0, **first, **me), 1).member_epoch
    peer.ask("pair: old id", beat("p", one, epoch, **me), 1)
    second = peer.ask("pair: second joins", beat("p", three, 0, **first), 1).member_epoch
    peer.settle(ASSIGNMENT_SECONDS)  # Apache Kafka assigns once in a while.
    peer.quietly(beat("p", three, second, topic_partitions=[]), 1)
    peer.ask("pair: no topics any more", beat("p", three, 99, subscribed_topic_names=[]), 1)
    peer.ask("pair: delete offsets it reads", _delete_offsets("p"), 0)
    peer.ask("pair: described", request("ConsumerGroupDescribe", group_ids=["p"]), 1)
    peer.ask("pair: commit from outside", commit("p", -1, ""), 9)
    peer.ask("pair: static leaves", beat("p", two, -1, **me), 1)
    peer.ask("pair: second leaves", beat("p", three, -1), 1)
    peer.ask("pair: commit from outside, empty", commit("p", -1, ""), 9)
    peer.ask("pair: classic joins the empty group", join("p"), 9)
    peer.ask("pair: listed", request("ListGroups", types_filter=["classic"]), 5)


SCENARIOS = (classic, consumer, static, consumer_static)
