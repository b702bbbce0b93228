"""Random requests of groups: offsets without members, one member of the classic protocol, several of KIP-848."""

from __future__ import annotations

from typing import Any

from tests.interop.differential.cases_groups import PROTOCOLS
from tests.interop.differential.random_model import GROUPS, Make, Model
from tests.interop.differential.random_steps import committed
from tests.interop.differential.sequence import Slot, Step

MEMBERS = ("m1", "m2", "m3")
CONSUMER_GROUP, CLASSIC_GROUP = "{run}-k", "{run}-j"
ALL_GROUPS = (*GROUPS, CONSUMER_GROUP, CLASSIC_GROUP, "{run}-nothing", "")


def heartbeat(model: Model) -> Step:
    """KIP-848 heartbeats: join, continue, acknowledge the assignment, leave."""
    rng = model.rng
    member = rng.choice(MEMBERS)
    epoch: Any = Slot(f"{member} epoch", 0, rng.choices((0, 5), (10, 1))[0])
    values: dict[str, Any] = {"group_id": CONSUMER_GROUP, "member_id": "{run}-" + member, "rebalance_timeout_ms": -1}
    kind = rng.choices(("join", "go on", "leave"), (4, 8, 1))[0]
    if kind == "leave":
        epoch = rng.choice((-1, -2, -3))
    if kind == "join":
        epoch = 0
        topics = rng.choice((["{run}-a"], ["{run}-a", "{run}-c"], ["{run}-x"]))
        values |= {"rebalance_timeout_ms": rng.choice((60_000, 60_000, 0)), "subscribed_topic_names": topics, "topic_partitions": []}
        values["server_assignor"] = rng.choices((None, "uniform", "range", "nobody"), (6, 2, 2, 1))[0]
    if member == "m3":
        values["instance_id"] = "{run}-static"
    return Step(
        api="ConsumerGroupHeartbeat",
        version=1,
        values={**values, "member_epoch": epoch},
        keeps={f"{member} epoch": lambda answer: _well(answer).member_epoch},
    )


def join(model: Model) -> Step:
    rng = model.rng
    group = rng.choices((CLASSIC_GROUP, CONSUMER_GROUP), (9, 1))[0]
    values = {
        "group_id": group,
        "session_timeout_ms": rng.choices((60_000, 1, 9_999_999), (10, 1, 1))[0],
        "rebalance_timeout_ms": 300,
        "member_id": Slot("classic member", ""),
        "protocol_type": rng.choices(("consumer", "connect", ""), (10, 1, 1))[0],
        "protocols": PROTOCOLS if rng.random() < 0.9 else [],
    }
    return Step(
        api="JoinGroup",
        version=max(1, model.version("JoinGroup")),
        values=values,
        keeps={"classic member": _member_of, "classic generation": lambda answer: _well(answer).generation_id}
        if group == CLASSIC_GROUP
        else {},
    )


def sync(model: Model) -> Step:
    assignments = [{"member_id": Slot("classic member", ""), "assignment": b"mine"}]
    return Step(
        api="SyncGroup",
        version=model.version("SyncGroup"),
        values={**_as_member(model), "assignments": assignments, "protocol_type": "consumer", "protocol_name": "range"},
    )


def classic_heartbeat(model: Model) -> Step:
    return Step(api="Heartbeat", version=model.version("Heartbeat"), values=_as_member(model))


def leave(model: Model) -> Step:
    version = model.version("LeaveGroup")
    member = Slot("classic member", "")
    values: dict[str, Any] = {"group_id": CLASSIC_GROUP}
    values |= {"members": [{"member_id": member}]} if version >= 3 else {"member_id": member}
    return Step(api="LeaveGroup", version=version, values=values)


def commit(model: Model) -> Step:
    rng = model.rng
    topic, partition = model.pick_partition()
    kind = rng.choice(("nobody", "nobody", "classic", "consumer"))
    values: dict[str, Any] = {"group_id": rng.choice(ALL_GROUPS[:-1]), "member_id": "", "generation_id_or_member_epoch": -1}
    if kind == "classic":
        values = _as_member(model)
        values["generation_id_or_member_epoch"] = values.pop("generation_id")
    if kind == "consumer":
        values = {"group_id": CONSUMER_GROUP, "member_id": "{run}-m1"}
        values["generation_id_or_member_epoch"] = Slot("m1 epoch", 0, rng.choices((0, -1, 1), (10, 1, 1))[0])
    values["topics"] = [{"name": topic, "partitions": [committed(model, partition)]}]
    return Step(api="OffsetCommit", version=model.version("OffsetCommit", 10), values=values)


def offsets(model: Model) -> Step:
    rng = model.rng
    group, version = rng.choice(ALL_GROUPS), model.version("OffsetFetch", 10)
    topics = [{"name": topic, "partition_indexes": [partition]} for topic, partition in [model.pick_partition()]]
    wanted = None if version >= 2 and rng.random() < 0.4 else topics
    values: dict[str, Any] = {"require_stable": version >= 7 and rng.random() < 0.3}
    values |= {"groups": [{"group_id": group, "topics": wanted}]} if version >= 8 else {"group_id": group, "topics": wanted}
    return Step(api="OffsetFetch", version=version, values=values)


def delete_offsets(model: Model) -> Step:
    topic, partition = model.pick_partition()
    topics = [{"name": topic, "partitions": [{"partition_index": partition}]}]
    return Step(api="OffsetDelete", version=0, values={"group_id": model.rng.choice(ALL_GROUPS), "topics": topics})


def describe(model: Model) -> Step:
    return Step(api="DescribeGroups", version=model.version("DescribeGroups"), values={"groups": [model.rng.choice(ALL_GROUPS)]})


def describe_consumer_group(model: Model) -> Step:
    api = "ConsumerGroupDescribe"
    return Step(
        api=api, version=model.version(api), values={"group_ids": [model.rng.choice((CONSUMER_GROUP, CONSUMER_GROUP, *ALL_GROUPS))]}
    )


def delete_group(model: Model) -> Step:
    return Step(api="DeleteGroups", version=model.version("DeleteGroups"), values={"groups_names": [model.rng.choice(ALL_GROUPS)]})


def _as_member(model: Model) -> dict[str, Any]:
    off = model.rng.choices((0, 1, -1), (10, 1, 1))[0]
    member: Any = Slot("classic member", "") if model.rng.random() < 0.95 else "nobody"
    return {"group_id": CLASSIC_GROUP, "generation_id": Slot("classic generation", 1, off), "member_id": member}


def _member_of(answer: Any) -> str:
    if not answer.member_id:
        raise LookupError
    member: str = answer.member_id
    return member


def _well(answer: Any) -> Any:
    if answer.error_code:
        raise LookupError
    return answer


GROUPING: tuple[tuple[int, Make], ...] = (
    (12, heartbeat),
    (6, join),
    (6, sync),
    (3, classic_heartbeat),
    (2, leave),
    (8, commit),
    (6, offsets),
    (2, delete_offsets),
    (3, describe),
    (4, describe_consumer_group),
    (1, delete_group),
)
