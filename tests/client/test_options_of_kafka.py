"""Every option of Apache Kafka's producer and consumer is used, accepted without effect, or refused with what to do instead.

The names are those of ProducerConfig.configDef() and ConsumerConfig.configDef() in Apache Kafka 4.3.1.
"""

import pytest

from chaffinch.admin.options import ADMIN_TABLE, READING_TABLE
from chaffinch.client.hints import OF_JAVA
from chaffinch.consumer.core.options import CONSUMER_OPTIONS
from chaffinch.errors import ConfigException
from chaffinch.producer.core.options import PRODUCER_OPTIONS
from chaffinch.settings import OptionTable
from chaffinch.spark.sink.option_tables import SINK
from chaffinch.spark.source.options import SOURCE

USED_BY_BOTH = [
    "bootstrap.servers",
    "client.id",
    "connections.max.idle.ms",
    "metadata.max.age.ms",
    "metadata.recovery.rebootstrap.trigger.ms",
    "metadata.recovery.strategy",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "request.timeout.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "sasl.jaas.config",
    "sasl.mechanism",
    "security.protocol",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms",
    "socket.connection.setup.timeout.ms",
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.type",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.type",
]

USED_BY_PRODUCERS = [
    "acks",
    "batch.size",
    "buffer.memory",
    "compression.gzip.level",
    "compression.lz4.level",
    "compression.type",
    "compression.zstd.level",
    "delivery.timeout.ms",
    "enable.idempotence",
    "key.serializer",
    "linger.ms",
    "max.block.ms",
    "max.in.flight.requests.per.connection",
    "max.request.size",
    "metadata.max.idle.ms",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "partitioner.ignore.keys",
    "retries",
    "transaction.timeout.ms",
    "transactional.id",
    "value.serializer",
]

USED_BY_CONSUMERS = [
    "allow.auto.create.topics",
    "auto.commit.interval.ms",
    "auto.offset.reset",
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
    "heartbeat.interval.ms",
    "isolation.level",
    "key.deserializer",
    "max.partition.fetch.bytes",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "session.timeout.ms",
    "value.deserializer",
]

# Tuning of what is not spoken or is Java's own: nobody misses it.
IDLE = [
    "client.dns.lookup",
    "enable.metrics.push",
    "interceptor.classes",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "sasl.kerberos.kinit.cmd",
    "sasl.kerberos.min.time.before.relogin",
    "sasl.kerberos.service.name",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.oauthbearer.assertion.algorithm",
    "sasl.oauthbearer.assertion.claim.aud",
    "sasl.oauthbearer.assertion.claim.exp.seconds",
    "sasl.oauthbearer.assertion.claim.iss",
    "sasl.oauthbearer.assertion.claim.jti.include",
    "sasl.oauthbearer.assertion.claim.nbf.seconds",
    "sasl.oauthbearer.assertion.claim.sub",
    "sasl.oauthbearer.assertion.file",
    "sasl.oauthbearer.assertion.private.key.file",
    "sasl.oauthbearer.assertion.private.key.passphrase",
    "sasl.oauthbearer.assertion.template.file",
    "sasl.oauthbearer.client.credentials.client.id",
    "sasl.oauthbearer.client.credentials.client.secret",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.jwt.retriever.class",
    "sasl.oauthbearer.jwt.validator.class",
    "sasl.oauthbearer.scope",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.token.endpoint.url",
    "security.providers",
    "ssl.keymanager.algorithm",
    "ssl.protocol",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
]

IDLE_IN_PRODUCERS = ["transaction.two.phase.commit.enable"]
IDLE_IN_CONSUMERS = ["group.remote.assignor", "share.acknowledgement.mode", "share.acquire.mode"]

LOGIN = "who logs in is said by sasl.username and sasl.password"
# What it would do is missing here: a class of Java's, a password for what has none.
REFUSED = {
    "config.providers": "write the values themselves",
    "sasl.client.callback.handler.class": LOGIN,
    "sasl.login.callback.handler.class": LOGIN,
    "sasl.login.class": LOGIN,
    "ssl.engine.factory.class": "TLS is set up by ssl.truststore.location",
    "ssl.keystore.password": "the password of the key in it is ssl.key.password",
    "ssl.truststore.password": "which have no password",
}
REFUSED_BY_PRODUCERS = {"partitioner.class": "it is partitioner: murmur2, round_robin, or a function"}
REFUSED_BY_CONSUMERS = {"internal.throw.on.fetch.stable.offset.unsupported": "leave it out, it is set by Kafka Streams alone"}

# Before Apache Kafka 4.0.
IDLE_OF_OLD = {"auto.include.jmx.reporter"}
OURS = {"sasl.password", "sasl.username", "ssl.ca.location"}
OURS_IN_CONSUMERS = {"auto.offset.reset.new.partitions"}
"""Of KIP-1327, later than the release whose options are listed above."""
OURS_IN_PRODUCERS = {"custom.exception.handler.class", "drop.invalid.large.records", "partitioner", "retry.unknown.topic.partition.ms"}

PARTS = {
    "producer": (
        PRODUCER_OPTIONS,
        {*USED_BY_BOTH, *USED_BY_PRODUCERS},
        OURS | OURS_IN_PRODUCERS,
        {*IDLE, *IDLE_IN_PRODUCERS},
        REFUSED | REFUSED_BY_PRODUCERS,
    ),
    "consumer": (
        CONSUMER_OPTIONS,
        {*USED_BY_BOTH, *USED_BY_CONSUMERS},
        OURS | OURS_IN_CONSUMERS,
        {*IDLE, *IDLE_IN_CONSUMERS},
        REFUSED | REFUSED_BY_CONSUMERS,
    ),
}


@pytest.mark.parametrize("part", PARTS)
def test_every_option_of_kafka_has_its_fate(part: str) -> None:
    table, used, ours, idle, refused = PARTS[part]
    assert {option.name for option in table.options} == used | ours
    assert table.without_effect == idle | IDLE_OF_OLD
    assert (len(used) + len(idle) + len(refused)) == {"producer": 113, "consumer": 116}[part]
    assert not (refused.keys() & (used | idle)) | (used & idle)


@pytest.mark.parametrize("part", PARTS)
def test_what_has_no_use_is_accepted_and_kept_apart(part: str) -> None:
    table, _, _, idle, _ = PARTS[part]
    assert table.parse({"bootstrap.servers": "b:1", **dict.fromkeys(idle, "x")}).ignored == dict.fromkeys(idle, "x")


@pytest.mark.parametrize(("part", "name"), [(part, name) for part, row in PARTS.items() for name in row[4]])
def test_what_would_be_missed_is_refused_with_what_to_do(part: str, name: str) -> None:
    table, _, _, _, refused = PARTS[part]
    with pytest.raises(ConfigException) as caught:
        table.parse({"bootstrap.servers": "b:1", name: "x"})
    assert str(caught.value).startswith(f"unknown option {name!r}: ")
    assert refused[name] in str(caught.value)


@pytest.mark.parametrize("table", [ADMIN_TABLE, READING_TABLE, SINK, SOURCE])
@pytest.mark.parametrize("name", OF_JAVA)
def test_the_other_parts_say_the_same(table: OptionTable, name: str) -> None:
    assert OF_JAVA[name] in table.unknown(name if table in (ADMIN_TABLE, READING_TABLE) else f"kafka.{name}")
