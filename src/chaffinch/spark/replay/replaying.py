"""Replay of dead letters (`chaffinch replay`): writes them to their topics again, exactly once, optionally repaired.

A dead letter topic is read as a queue. The transaction of the rows also writes a note to each partition with the end of the replayed
letters, where the next replay starts. Rows that are rejected again become new letters after the note. So nothing is replayed twice, even
after a crash, and only one of two concurrent replays writes. A Parquet file is one transaction, with a token derived from its name, and
then moves to the subfolder `_replayed`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from chaffinch.client.addresses import parse_bootstrap_servers
from chaffinch.errors import ConfigException
from chaffinch.public_names import exported_from
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

__all__ = ["ReplayPlan", "ReplayReport", "check_cluster", "replay_dead_letters"]

CHECK_TIMEOUT_MS: Final = 15_000


def check_cluster(plan: ReplayPlan) -> None:
    """Check the cluster before Java is started.

    Raises ConfigException if no host name can be resolved. Raises Refusal if no broker responds or accepts this client, a topic does not
    exist, or there is no folder of letters.
    """
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
    """Raises Refusal for a topic of the plan that does not exist."""
    named = [(name, option) for name, option in ((plan.topic, "--topic"), (plan.to, "--to")) if name is not None]
    with writing.cluster_client(plan.client) as client:
        take_snapshot(client, named, CHECK_TIMEOUT_MS)


@exported_from("chaffinch.spark")
def replay_dead_letters(spark: SparkSession, plan: ReplayPlan) -> ReplayReport:
    """Replay dead letters, or check what a replay would do (`is_dry_run`).

    Args:
        spark: a session in which the format `chaffinch` is registered (`chaffinch.spark.session`).
        plan: what to replay.

    Returns:
        The counts of written, rejected and skipped letters.

    Raises:
        ConfigException: an argument is of the wrong type, or Spark does not accept a repair or condition.
        Refusal: the letters cannot be read or written; `tag_in` finds its tag.
        Exception: errors of Spark are raised unchanged.
    """
    if not isinstance(plan, ReplayPlan):
        raise ConfigException(f"plan cannot be {shown_value(plan)}: it must be a ReplayPlan")
    if not hasattr(spark, "createDataFrame"):
        raise ConfigException(f"spark cannot be {shown_value(spark)}: it must be a SparkSession")
    with worded_for(Kind.BATCH_ONCE):
        _check_topics(plan)
        writing.repair(dead_letters.empty_frame(spark), plan)
        writing.check_condition(dead_letters.empty_frame(spark), plan)
        return replay_topic(spark, plan, str(plan.topic)) if plan.path is None else replay_files(spark, plan, plan.path)
