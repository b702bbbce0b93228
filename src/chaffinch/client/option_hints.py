"""Hints for unknown options: names from the other kind of client or from other libraries, and what to use instead.

None of these names is accepted, because an option that is ignored is worse than an error. Sources: ConsumerConfig.java and
ProducerConfig.java of Apache Kafka 4.3, CONFIGURATION.md of librdkafka, KafkaConsumer and KafkaProducer of kafka-python.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PRODUCER_OPTION_NAMES: Final = frozenset(
    {
        "acks",
        "batch.size",
        "buffer.memory",
        "compression.gzip.level",
        "compression.lz4.level",
        "compression.type",
        "compression.zstd.level",
        "custom.exception.handler.class",
        "delivery.timeout.ms",
        "drop.invalid.large.records",
        "enable.idempotence",
        "key.serializer",
        "linger.ms",
        "max.block.ms",
        "max.in.flight.requests.per.connection",
        "max.request.size",
        "metadata.max.idle.ms",
        "partitioner",
        "partitioner.adaptive.partitioning.enable",
        "partitioner.availability.timeout.ms",
        "partitioner.ignore.keys",
        "retries",
        "retry.unknown.topic.partition.ms",
        "trace.headers",
        "transaction.timeout.ms",
        "transaction.two.phase.commit.enable",
        "transactional.id",
        "value.serializer",
    }
)
CONSUMER_OPTION_NAMES: Final = frozenset(
    {
        "allow.auto.create.topics",
        "auto.commit.interval.ms",
        "auto.offset.reset",
        "auto.offset.reset.new.partitions",
        "check.crcs",
        "client.rack",
        "default.api.timeout.ms",
        "enable.auto.commit",
        "exclude.internal.topics",
        "fetch.max.bytes",
        "fetch.max.wait.ms",
        "fetch.min.bytes",
        "group.id",
        "group.instance.id",
        "group.protocol",
        "group.remote.assignor",
        "heartbeat.interval.ms",
        "isolation.level",
        "key.deserializer",
        "max.partition.fetch.bytes",
        "max.poll.interval.ms",
        "max.poll.records",
        "partition.assignment.strategy",
        "session.timeout.ms",
        "share.acknowledgement.mode",
        "share.acquire.mode",
        "value.deserializer",
    }
)

_LOGIN_CLASS: Final = "it is a Java class: set sasl.username and sasl.password, or sasl.jaas.config"
JAVA_ONLY_OPTIONS: Final[Mapping[str, str]] = {
    "config.providers": "it resolves ${...} in Java; Chaffinch does not, so write the values themselves",
    "sasl.client.callback.handler.class": _LOGIN_CLASS,
    "sasl.login.callback.handler.class": _LOGIN_CLASS,
    "sasl.login.class": _LOGIN_CLASS,
    "ssl.engine.factory.class": "it is a Java class: TLS is configured by ssl.truststore.location, ssl.keystore.location and so on",
    "ssl.keystore.password": "keystores are PEM files: the password of the key is ssl.key.password",
    "ssl.truststore.password": "truststores are PEM files, which have no password",
}
"""Kafka's options with an effect in Java that Chaffinch does not have."""

_COMMON: Final = {
    **JAVA_ONLY_OPTIONS,
    "metadata.broker.list": "use bootstrap.servers",
    "socket.timeout.ms": "use request.timeout.ms",
    "topic.metadata.refresh.interval.ms": "use metadata.max.age.ms",
    "sasl.mechanisms": "use sasl.mechanism, with one mechanism",
    "sasl.plain.username": "use sasl.username",
    "sasl.plain.password": "use sasl.password",
    "ssl.ca.pem": "use ssl.truststore.certificates",
    "ssl.cafile": "use ssl.truststore.location, or ssl.ca.location",
    "ssl.key.pem": "use ssl.keystore.key",
    "ssl.certificate.pem": "use ssl.keystore.certificate.chain",
    "ssl.key.location": "use ssl.keystore.location, one PEM file with the key and its certificates",
    "ssl.certificate.location": "use ssl.keystore.location, one PEM file with the key and its certificates",
    "enable.ssl.certificate.verification": "certificates are always verified: set ssl.truststore.location to the trusted ones",
    "api.version": "leave it out: versions are negotiated with each broker",
    "api.version.request": "leave it out: versions are negotiated with each broker",
    "broker.version.fallback": "leave it out: versions are negotiated with each broker",
    "debug": "leave it out, and set the level of the logger 'chaffinch'",
    "log.level": "leave it out, and set the level of the logger 'chaffinch'",
    "statistics.interval.ms": "leave it out, and call metrics()",
    "stats.cb": "leave it out, and call metrics()",
    "error.cb": "leave it out: errors are raised or logged",
    "default.topic.config": "leave it out: set topic options with `chaffinch.admin`",
}
_CONSUMER: Final = {
    "enable.auto.offset.store": "leave it out: records that `poll` returned are committed by the next `poll`. To commit yourself, set"
    " enable.auto.commit=false and call commit(offsets)",
    "enable.partition.eof": "leave it out: compare position() with end_offsets()",
    "fetch.wait.max.ms": "use fetch.max.wait.ms",
    "fetch.message.max.bytes": "use max.partition.fetch.bytes",
    "queued.min.messages": "leave it out: prefetching is limited by max.partition.fetch.bytes",
    "queued.max.messages.kbytes": "leave it out: prefetching is limited by max.partition.fetch.bytes",
    "consumer.timeout.ms": "leave it out, and give poll() a timeout",
    "offset.commit.cb": "leave it out, and give commit() an on_commit",
    "on.commit": "give on_commit to commit()",
    "topic": "give topics to subscribe()",
    "topics": "give topics to subscribe()",
    "max.poll.interval": "use max.poll.interval.ms",
    "internal.throw.on.fetch.stable.offset.unsupported": "leave it out: only Kafka Streams sets it",
    "partitioner.class": "it is an option of producers, remove it from the consumer",
}
_PRODUCER: Final = {
    "partitioner.class": "use partitioner: murmur2, round_robin, or a Python function",
    "queue.buffering.max.ms": "use linger.ms",
    "queue.buffering.max.messages": "use buffer.memory, in bytes",
    "queue.buffering.max.kbytes": "use buffer.memory, in bytes",
    "batch.num.messages": "use batch.size, in bytes",
    "message.send.max.retries": "use retries",
    "message.timeout.ms": "use delivery.timeout.ms",
    "message.max.bytes": "use max.request.size",
    "compression.codec": "use compression.type",
    "compression.level": "use compression.gzip.level, compression.lz4.level or compression.zstd.level",
    "request.required.acks": "use acks",
    "request.timeout": "use request.timeout.ms",
    "max.in.flight": "use max.in.flight.requests.per.connection",
    "dr.cb": "give on_delivery to send()",
    "dr.msg.cb": "give on_delivery to send()",
    "delivery.report.cb": "give on_delivery to send()",
    "on.delivery": "give on_delivery to send()",
    "topic": "give the topic to send()",
}

PRODUCER_HINTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(CONSUMER_OPTION_NAMES, "it is an option of consumers, remove it from the producer"),
    **_COMMON,
    **_PRODUCER,
}
CONSUMER_HINTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(PRODUCER_OPTION_NAMES, "it is an option of producers, remove it from the consumer"),
    **_COMMON,
    **_CONSUMER,
}
