"""Random requests about topics and their options: every option with values that fit, that do not, and at the edges."""

from __future__ import annotations

from typing import Any

from tests.interop.differential.cases_topics import APPEND, DELETE, SET, SUBTRACT, TOPIC
from tests.interop.differential.random_model import INT64_MAX, TOPICS, Make, Model
from tests.interop.differential.sequence import Step

NUMBERS = ("0", "1", "-1", "-2", "14", "100", "1000", "1048576", "2147483647", "2147483648", str(INT64_MAX), str(INT64_MAX + 1))
ODD = ("", " 1", "1 ", "+1", "1.0", "1e3", "0x10", "soon", "true", "null", "1_000")
SHARES = ("0", "1", "0.5", "-0.1", "1.1", ".5", "1e-3", "half")
BOOLEANS = ("true", "false", "TRUE", "False", " true", "yes", "1", "")
NUMERIC = (
    "retention.ms", "retention.bytes", "segment.bytes", "segment.ms", "segment.jitter.ms", "segment.index.bytes", "max.message.bytes",
    "min.insync.replicas", "delete.retention.ms", "min.compaction.lag.ms", "max.compaction.lag.ms", "file.delete.delay.ms",
    "flush.messages", "flush.ms", "index.interval.bytes", "message.timestamp.before.max.ms", "message.timestamp.after.max.ms",
    "local.retention.ms", "local.retention.bytes", "compression.gzip.level", "compression.lz4.level", "compression.zstd.level",
)  # fmt: skip
UNKNOWN = "no.such.option"
VALUES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(NUMERIC, (*NUMBERS, *ODD)),
    # Apache Kafka takes any negative size for none.
    "retention.bytes": tuple(text for text in (*NUMBERS, *ODD) if text != "-2"),
    "min.cleanable.dirty.ratio": SHARES,
    "preallocate": BOOLEANS,
    "unclean.leader.election.enable": BOOLEANS,
    "remote.storage.enable": BOOLEANS,
    "remote.log.copy.disable": BOOLEANS,
    "remote.log.delete.on.disable": BOOLEANS,
    "cleanup.policy": ("compact", "delete", "compact,delete", "delete, compact", "compact,compact", "", ",", "COMPACT", "burn", "none"),
    "compression.type": ("producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd", "ZSTD", " lz4", "brotli", ""),
    "message.timestamp.type": ("CreateTime", "LogAppendTime", "createtime", "NoTimestampType", ""),
    "leader.replication.throttled.replicas": ("", "*", "0:1", "0:1,1:1", "0", "none", "a:b"),
    UNKNOWN: ("1", ""),
}


def _assignment(model: Model) -> tuple[str, str]:
    name = model.rng.choice(list(VALUES))
    return name, model.rng.choice(VALUES[name])


def alter(model: Model) -> Step:
    rng = model.rng
    changes = []
    for _ in range(rng.choice((1, 1, 1, 2))):
        name, value = _assignment(model)
        kind = rng.choices((SET, DELETE, APPEND, SUBTRACT), (12, 2, 2, 2))[0]
        if kind == DELETE and name == UNKNOWN:
            continue  # Apache Kafka has nothing against resetting what it does not know.
        given = None if kind == DELETE or rng.random() < 0.03 else value
        changes.append({"name": name, "config_operation": kind, "value": given})
    resource = {"resource_type": TOPIC, "resource_name": _topic(model), "configs": changes}
    values = {"resources": [resource], "validate_only": rng.random() < 0.2}
    return Step(api="IncrementalAlterConfigs", version=model.version("IncrementalAlterConfigs"), values=values, settles=True)


def replace(model: Model) -> Step:
    """The older request: what it does not name goes back to its default."""
    changes = [{"name": name, "value": value} for name, value in dict(_assignment(model) for _ in range(model.rng.randrange(3))).items()]
    resource = {"resource_type": TOPIC, "resource_name": _topic(model), "configs": changes}
    values = {"resources": [resource], "validate_only": False}
    return Step(api="AlterConfigs", version=model.version("AlterConfigs"), values=values, settles=True)


def describe(model: Model) -> Step:
    keys = None if model.rng.random() < 0.3 else [model.rng.choice(list(VALUES)) for _ in range(2)]
    resource = {"resource_type": TOPIC, "resource_name": _topic(model), "configuration_keys": keys}
    values = {"resources": [resource], "include_synonyms": model.rng.random() < 0.5}
    return Step(api="DescribeConfigs", version=model.version("DescribeConfigs"), values=values)


def create(model: Model) -> Step:
    rng = model.rng
    options = [{"name": name, "value": value} for name, value in dict(_assignment(model) for _ in range(rng.randrange(3))).items()]
    topic: dict[str, Any] = {
        "name": "{run}-" + rng.choice(("a", "new", "newer", "new.er", "new_er", "sp ace", "", "..", "x" * 240)),
        "num_partitions": rng.choices((1, 2, -1, 0, -2), (6, 2, 2, 1, 1))[0],
        "replication_factor": rng.choices((1, -1, 0, 5, -2), (8, 3, 1, 1, 1))[0],
        "configs": options,
    }
    if not topic["name"].removeprefix("{run}-"):
        topic["name"] = ""
    if rng.random() < 0.2:
        topic |= {"num_partitions": -1, "replication_factor": -1} if rng.random() < 0.7 else {}
        topic["assignments"] = [{"partition_index": number, "broker_ids": []} for number in range(rng.choice((1, 2)))]
    values = {"topics": [topic], "timeout_ms": 10_000, "validate_only": rng.random() < 0.3}
    return Step(api="CreateTopics", version=model.version("CreateTopics"), values=values, settles=True)


def grow(model: Model) -> Step:
    topic = {"name": _topic(model), "count": model.rng.choice((0, 1, 2, 3, 4, -1)), "assignments": None}
    values = {"topics": [topic], "timeout_ms": 10_000, "validate_only": model.rng.random() < 0.3}
    return Step(api="CreatePartitions", version=model.version("CreatePartitions"), values=values, settles=True)


def metadata(model: Model) -> Step:
    values = {"topics": [{"name": _topic(model)}], "allow_auto_topic_creation": False}
    return Step(api="Metadata", version=max(4, model.version("Metadata", 13)), values=values)


def delete(model: Model) -> Step:
    name = model.rng.choice(("{run}-new", "{run}-newer", "{run}-nothing", ""))
    values = {"topic_names": [name], "timeout_ms": 10_000}
    return Step(api="DeleteTopics", version=model.version("DeleteTopics", 6), values=values, settles=True)


def _topic(model: Model) -> str:
    return model.rng.choice((*TOPICS, "{run}-new", "{run}-a", "{run}-a"))


OPTIONS: tuple[tuple[int, Make], ...] = (
    (12, alter),
    (2, replace),
    (8, describe),
    (6, create),
    (2, grow),
    (2, metadata),
    (1, delete),
)
