"""Kafka for Spark: the format `chaffinch`, written exactly once, bad rows set aside; and a session that finds Java.

`from chaffinch.spark import session`. Spark imports this package at every start of a worker, so nothing heavy is imported here:
names other than `session` are imported on first use, each from the module that `_MODULES` has for it.
"""

from typing import TYPE_CHECKING, Any, Final

# Bound here, not on first use: the module of the same name would take its place otherwise.
from chaffinch.spark.session import session

if TYPE_CHECKING:
    from chaffinch.spark.kafka_sink import KafkaSink
    from chaffinch.spark.refusals import ErrorTag, tag_in
    from chaffinch.spark.supervision.supervisor import SupervisionEnded, supervise

_MODULES: Final = {
    "ErrorTag": "refusals",
    "KafkaSink": "kafka_sink",
    "SupervisionEnded": "supervision.supervisor",
    "supervise": "supervision.supervisor",
    "tag_in": "refusals",
}

__all__ = ["ErrorTag", "KafkaSink", "SupervisionEnded", "session", "supervise", "tag_in"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module 'chaffinch.spark' has no attribute {name!r}")
    value = getattr(import_module(f"chaffinch.spark.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
