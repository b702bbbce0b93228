"""Kafka for Spark: the format `chaffinch`, written exactly once, bad rows set aside; and a session that finds Java.

`from chaffinch.spark import session`. Spark imports this package at every start of a worker, so nothing heavy is imported here.
"""

# Bound here, not on first use: the module of the same name would take its place otherwise.
from chaffinch.spark.session import session

__all__ = ["session"]
