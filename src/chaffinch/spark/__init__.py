"""Spark integration: the data source `chaffinch` (exactly-once sink with dead letters, and source), `KafkaSink` and `session`.

`from chaffinch.spark import session`. Spark imports this package whenever a worker starts, so nothing heavy is imported here: names
other than `session` are imported on first use, from the modules in `_MODULES`.
"""

from typing import TYPE_CHECKING, Any, Final

# Imported eagerly: otherwise the module `session` would replace the function of the same name.
from chaffinch.spark.session import session

if TYPE_CHECKING:
    from chaffinch.spark.java import JavaNotFound
    from chaffinch.spark.kafka_sink import KafkaSink
    from chaffinch.spark.option_types import KafkaSinkOptions
    from chaffinch.spark.refusals import ErrorTag, Refusal, tag_in
    from chaffinch.spark.replay.plan import ReplayPlan, ReplayReport
    from chaffinch.spark.replay.replaying import replay_dead_letters
    from chaffinch.spark.supervision.supervisor import SupervisionEnded, supervise
    from chaffinch.spark.workers import WorkersUnfit

_MODULES: Final = {
    "KafkaSinkOptions": "option_types",
    "ErrorTag": "refusals",
    "JavaNotFound": "java",
    "KafkaSink": "kafka_sink",
    "Refusal": "refusals",
    "ReplayPlan": "replay.plan",
    "ReplayReport": "replay.plan",
    "SupervisionEnded": "supervision.supervisor",
    "WorkersUnfit": "workers",
    "replay_dead_letters": "replay.replaying",
    "supervise": "supervision.supervisor",
    "tag_in": "refusals",
}

__all__ = [
    "ErrorTag",
    "JavaNotFound",
    "KafkaSink",
    "KafkaSinkOptions",
    "Refusal",
    "ReplayPlan",
    "ReplayReport",
    "SupervisionEnded",
    "WorkersUnfit",
    "replay_dead_letters",
    "session",
    "supervise",
    "tag_in",
]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module 'chaffinch.spark' has no attribute {name!r}")
    value = getattr(import_module(f"chaffinch.spark.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
