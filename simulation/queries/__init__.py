"""Streaming queries that write through the Spark commit protocol, and the faults injected into it."""
