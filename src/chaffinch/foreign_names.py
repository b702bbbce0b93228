"""Names from other Kafka clients, and what to use instead, for the errors of attributes, imports and arguments.

Internal; may change without notice.

Options have a similar table (`client/option_hints.py`). None of these names is accepted. Sources: the public interfaces of Java clients,
confluent-kafka, kafka-python and aiokafka.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

_ADMIN: Final = "it is chaffinch.admin.Admin"
_LIST: Final = "call list_topics() of chaffinch.admin.Admin, or run `chaffinch topics list`"
_LOGIN: Final = "give sasl_username and sasl_password when it is made"
_NO_EVENTS: Final = "leave it out: outcomes need no call, they come through the future of send() and its on_delivery"

MODULE_HINTS: Final[Mapping[str, str]] = {
    "AIOKafkaAdminClient": _ADMIN,
    "AIOKafkaConsumer": "it is AsyncConsumer",
    "AIOKafkaProducer": "it is AsyncProducer",
    "Admin": _ADMIN,
    "AdminClient": _ADMIN,
    "AvroConsumer": "use Consumer with value_deserializer",
    "AvroProducer": "use Producer with value_serializer",
    "DeserializingConsumer": "use Consumer with key_deserializer and value_deserializer",
    "KafkaAdminClient": _ADMIN,
    "KafkaClient": _ADMIN,
    "KafkaConsumer": "it is Consumer",
    "KafkaContainer": "it is EmbeddedBroker",
    "KafkaError": "the errors are in chaffinch.errors, KafkaException above all of them",
    "KafkaException": "it is chaffinch.errors.KafkaException",
    "KafkaProducer": "it is Producer",
    "KafkaTimeoutError": "it is chaffinch.errors.TimeoutException",
    "Message": "it is ConsumerRecord",
    "MockConsumer": "use Consumer with an EmbeddedBroker",
    "MockProducer": "use Producer with an EmbeddedBroker",
    "NewTopic": "call create_topic(name, ...) of chaffinch.admin.Admin",
    "SerializingProducer": "use Producer with key_serializer and value_serializer",
    "SimpleConsumer": "it is Consumer",
    "SimpleProducer": "it is Producer",
}
PRODUCER_HINTS: Final[Mapping[str, str]] = {
    "beginning_offsets": "it is a method of Consumer",
    "bootstrap_connected": "leave it out: calls wait for a broker, and say in the log for which",
    "create_batch": "call send_table() for a whole batch of records",
    "events": _NO_EVENTS,
    "init_idempotence": "leave it out: the producer is idempotent unless enable.idempotence=False is given",
    "list_topics": f"call partitions_for(topic) for one topic; for all, {_LIST.removeprefix('call ')}",
    "poll": _NO_EVENTS,
    "produce": "it is send(topic, value, key=..., on_delivery=...), which returns a future",
    "produce_batch": "call send_table() for a whole batch of records",
    "purge": "call close(timeout) with a short timeout: what has no outcome by then fails",
    "send_and_wait": "call send(...).result()",
    "send_batch": "call send_table()",
    "set_sasl_credentials": _LOGIN,
    "start": "leave it out: the producer works as soon as it is made",
    "stop": "it is close()",
}
ASYNC_PRODUCER_HINTS: Final[Mapping[str, str]] = {name: hint for name, hint in PRODUCER_HINTS.items() if name != "start"}
CONSUMER_HINTS: Final[Mapping[str, str]] = {
    "bootstrap_connected": "leave it out: calls wait for a broker, and say in the log for which",
    "commit_async": "call commit(asynchronous=True, on_commit=...)",
    "commit_sync": "it is commit()",
    "consume": "it is poll(timeout), with max.poll.records as the largest number; or poll_table(timeout)",
    "consumer_group_metadata": "it is group_metadata()",
    "flush": "it is a method of Producer; a consumer has commit()",
    "get_watermark_offsets": "call beginning_offsets(partitions) and end_offsets(partitions)",
    "getmany": "it is poll(timeout)",
    "getone": "iterate over the consumer, or call poll(timeout)",
    "highwater": "call end_offsets(partitions)",
    "incremental_assign": "call assign(partitions) with all of them",
    "incremental_unassign": "call assign(partitions) with those that stay",
    "last_stable_offset": "call end_offsets(partitions) with isolation.level=read_committed",
    "list_topics": _LIST,
    "memberid": "it is group_metadata().member_id",
    "partitions_for_topic": "it is partitions_for(topic)",
    "produce": "it is send() of Producer",
    "seek_to_committed": "call committed(partitions), then seek(partition, offset)",
    "send": "it is a method of Producer",
    "set_sasl_credentials": _LOGIN,
    "start": "leave it out: the consumer works as soon as it is made",
    "stop": "it is close()",
    "store_offsets": "leave it out: what poll() gave is committed by the next one; to choose yourself, call commit(offsets)",
    "topics": _LIST,
    "unassign": "it is unsubscribe()",
}
ASYNC_CONSUMER_HINTS: Final[Mapping[str, str]] = {name: hint for name, hint in CONSUMER_HINTS.items() if name != "start"}
ADMIN_HINTS: Final[Mapping[str, str]] = {
    "alter_configs": "it is alter_topic_configs(name, changed) or alter_node_configs(node, changed), which leave other options as they are",
    "alter_consumer_group_offsets": "it is commit_offsets(group, offsets), or reset_offsets(group, ...)",
    "alter_user_scram_credentials": "it is set_password(name, password) or delete_password(name)",
    "create_partitions": "it is add_partitions(name, total)",
    "create_topics": "call create_topic(name, ...) for each",
    "delete_consumer_group_offsets": "it is delete_offsets(group, partitions)",
    "delete_consumer_groups": "it is delete_groups(names)",
    "describe_configs": "it is describe_topic_configs(names) or describe_node_configs(node)",
    "describe_consumer_groups": "it is describe_groups(names)",
    "describe_transactions": "call describe_transaction(transactional_id) for each",
    "describe_user_scram_credentials": "it is describe_users(names)",
    "fence_producers": "call abort_transaction(transactional_id) for each",
    "incremental_alter_configs": "it is alter_topic_configs(name, changed) or alter_node_configs(node, changed)",
    "list_consumer_group_offsets": "it is committed_offsets(group)",
    "list_consumer_groups": "it is list_groups()",
    "list_offsets": "it is earliest_offsets(partitions), latest_offsets(partitions) or offsets_at(partitions, time_ms)",
    "poll": "leave it out: calls return their results",
    "start": "leave it out: connections are made on demand",
}
BROKER_HINTS: Final[Mapping[str, str]] = {
    "bootstrap_server": "it is bootstrap_servers",
    "create_topics": "call create_topic() for each",
    "get_bootstrap_server": "it is the attribute bootstrap_servers",
    "list_topics": "it is the attribute topics",
    "port": "it is the last part of bootstrap_servers",
    "start": "leave it out: the broker works as soon as it is made",
    "stop": "it is close(), or stop_node(node_id) for one of several nodes",
    "with_kraft": "leave it out",
}
_POLL: Final = {
    "max_records": "leave it out, and set the option max.poll.records",
    "num_messages": "leave it out, and set the option max.poll.records",
    "timeout_ms": "it is timeout, in seconds",
    "update_offsets": "leave it out",
}
ARGUMENT_HINTS: Final[Mapping[str, Mapping[str, str]]] = {
    "poll": _POLL,
    "poll_table": _POLL,
    "commit": {
        "callback": "it is on_commit",
        "message": "give offsets: {partition: record.offset + 1}",
        "timeout_ms": "it is timeout, in seconds",
    },
    "send": {
        "callback": "it is on_delivery",
        "timestamp": "it is timestamp_ms, in milliseconds since 1970",
        "on_error": "it is on_delivery, which is called for errors as well",
    },
    "flush": {"timeout_ms": "it is timeout, in seconds"},
    "close": {"autocommit": "leave it out, and set the option enable.auto.commit", "timeout_ms": "it is timeout, in seconds"},
}
"""Hints by argument name, by method."""

_CAPITAL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


def missing_attributes(hints: Mapping[str, str]) -> Callable[[object, str], NoReturn]:
    """A `__getattr__` for a class, whose AttributeError contains a hint if there is one."""

    def missing(instance: object, name: str) -> NoReturn:
        kind = type(instance)
        text = f"{kind.__name__!r} object has no attribute {name!r}"
        own_name = _CAPITAL.sub("_", name).lower()
        hint = hints.get(name) or hints.get(own_name) or (f"it is {own_name}" if own_name != name and hasattr(kind, own_name) else None)
        raise AttributeError(text, name=name, obj=instance) if hint is None else AttributeError(f"{text}: {hint}")

    return missing


def refuse_arguments(method: str, names: Mapping[str, Any]) -> None:
    """Raise TypeError for unknown arguments of a method, with a hint if there is one."""
    for name in names:
        hint = ARGUMENT_HINTS.get(method, {}).get(name)
        raise TypeError(f"{method}() got an unexpected keyword argument {name!r}" + (f": {hint}" if hint else ""))


def module_error(name: str, module: str = "chaffinch", hints: Mapping[str, str] = MODULE_HINTS) -> Exception:
    """The error for an unknown name of a package. Call it only from `__getattr__` of the package.

    `from chaffinch import ...` drops the text of an AttributeError, so this returns an ImportError there; `hasattr` needs an
    AttributeError.
    """
    text = f"module {module!r} has no attribute {name!r}"
    hint = hints.get(name)
    if hint is None:
        return AttributeError(text)
    frame = sys._getframe(2)
    is_import = frame.f_code.co_code[frame.f_lasti] == _import_from_opcode()
    return (
        ImportError(f"cannot import name {name!r} from {module!r}: {hint}", name=name) if is_import else AttributeError(f"{text}: {hint}")
    )


ADMIN_MODULE_HINTS: Final[Mapping[str, str]] = {
    "AclBinding": "access control lists are not supported",
    "AdminClient": "it is Admin",
    "ConfigResource": "call describe_topic_configs(names) or alter_topic_configs(name, changed) of Admin",
    "KafkaAdminClient": "it is Admin",
    "NewPartitions": "call add_partitions(name, total) of Admin",
    "NewTopic": "call create_topic(name, ...) of Admin",
}


def _import_from_opcode() -> int:
    from opcode import opmap  # Imported only for an error.

    return opmap["IMPORT_FROM"]
