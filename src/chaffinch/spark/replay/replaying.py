"""Dead letters back to their topics, exactly once, after a repair where one is given: what `chaffinch replay` does.

A dead letter topic is read as a queue. With the rows, in the same transaction, goes a note for each of its partitions that says up to
where its letters are done with; the next replay begins there. What is rejected once more becomes a new letter behind the note. So
nothing is replayed twice, whatever dies where, and of two replays at the same time one writes. A file of Parquet is one transaction,
with a token made from its name, and moves to the folder `_replayed` below when that has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaffinch.client.addresses import parse_bootstrap_servers
from chaffinch.errors import ConfigException
from chaffinch.runtime.sockets import SocketFailed, resolve
from chaffinch.settings import shown_value
from chaffinch.spark.refusals import Kind, worded_for
from chaffinch.spark.replay import dead_letters, writing
from chaffinch.spark.replay.file_replay import check_folder, replay_files
from chaffinch.spark.replay.plan import ReplayPlan, ReplayReport
from chaffinch.spark.replay.topic_replay import replay_topic
from chaffinch.spark.target import take_snapshot

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ReplayPlan", "ReplayReport", "check_cluster", "replay"]

CHECK_TIMEOUT_MS: Final = 15_000


def check_cluster(plan: ReplayPlan) -> None:
    """For whoever would start Java only to hear that nobody is there. ConfigException where no host is known; Refusal where no broker
    answers or lets this client in, or knows a topic, and where there is no folder of letters."""
    servers = plan.client["kafka.bootstrap.servers"]
    reasons = []
    for address in parse_bootstrap_servers(servers):
        try:
            resolve(address.host, address.port)
            break
        except SocketFailed as failure:
            reasons.append(f"{address.host}: {failure}")
    else:
        raise ConfigException(f"option bootstrap.servers cannot be {servers!r}: {'; '.join(reasons)}")
    with worded_for(Kind.BATCH_ONCE):
        if plan.path is not None:
            check_folder(str(plan.path))
        _check_topics(plan)


def _check_topics(plan: ReplayPlan) -> None:
    """Refuses a topic that the plan names and nobody knows."""
    named = [(name, option) for name, option in ((plan.topic, "--topic"), (plan.to, "--to")) if name is not None]
    with writing.cluster_client(plan.client) as client:
        take_snapshot(client, named, CHECK_TIMEOUT_MS)


def replay(spark: SparkSession, plan: ReplayPlan) -> ReplayReport:
    """Replays, or tells what would become of it. Raises Refusal, ConfigException for a repair that cannot be, and Spark's own errors."""
    if not isinstance(plan, ReplayPlan):
        raise ConfigException(f"plan cannot be {shown_value(plan)}: it must be a ReplayPlan")
    if not hasattr(spark, "createDataFrame"):
        raise ConfigException(f"spark cannot be {shown_value(spark)}: it must be a SparkSession")
    with worded_for(Kind.BATCH_ONCE):
        _check_topics(plan)
        writing.repair(dead_letters.empty_frame(spark), plan)
        writing.check_condition(dead_letters.empty_frame(spark), plan)
        return replay_topic(spark, plan, str(plan.topic)) if plan.path is None else replay_files(spark, plan, plan.path)
