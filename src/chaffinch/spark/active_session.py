"""The session of a thread, by which Spark finds a format that is written.

Spark looks for a format in Python among those of the thread's active session (`DataSource.lookupDataSource`; for reads, of the session
that reads). Only the thread that began a session has one: in every other a write would hear that there is no format chaffinch.
"""

from __future__ import annotations


def activate() -> None:
    """Makes the session of the process that of this thread, unless it has one; nothing on Spark Connect, whose server sees to that."""
    from pyspark.sql import SparkSession

    running = SparkSession._instantiatedSession
    if running is None or running._sc._jsc is None:  # None that has begun, or that has not been stopped.
        return
    sessions = SparkSession._get_j_spark_session_class(running._jvm)
    if not sessions.getActiveSession().isDefined():
        sessions.setActiveSession(running._jsparkSession)


def default_file_system() -> str | None:
    """`spark.hadoop.fs.defaultFS` of the thread's session, as its sinks see it; None where that is not set, or there is no session."""
    from pyspark.sql import SparkSession

    running = SparkSession.getActiveSession()
    return None if running is None else running.conf.get("spark.hadoop.fs.defaultFS", None)
