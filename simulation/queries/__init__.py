"""Streaming queries that write through Spark's commit protocol, and where they are cut."""
