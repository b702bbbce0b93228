"""Every option of Apache Kafka's producer and consumer is used, accepted without effect, or refused with what to do instead.

The names are those of ProducerConfig.configDef() and ConsumerConfig.configDef() in Apache Kafka 4.3.1.
"""

import pytest

from chaffinch.admin.options import ADMIN_TABLE, READING_TABLE
from chaffinch.client.option_hints import CONSUMER_HINTS, CONSUMER_OPTION_NAMES, JAVA_ONLY_OPTIONS, PRODUCER_HINTS, PRODUCER_OPTION_NAMES
from chaffinch.consumer.core.options import CONSUMER_OPTIONS
from chaffinch.errors import ConfigException
from chaffinch.producer.core.options import PRODUCER_OPTIONS
from chaffinch.settings import OptionTable
from chaffinch.spark.sink.option_tables import SINK
from chaffinch.spark.source.options import SOURCE

NAMES_OF_BOTH = """\
bootstrap.servers client.dns.lookup client.id config.providers connections.max.idle.ms enable.metrics.push interceptor.classes
metadata.max.age.ms metadata.recovery.rebootstrap.trigger.ms metadata.recovery.strategy metric.reporters metrics.num.samples
metrics.recording.level metrics.sample.window.ms receive.buffer.bytes reconnect.backoff.max.ms reconnect.backoff.ms request.timeout.ms
retry.backoff.max.ms retry.backoff.ms sasl.client.callback.handler.class sasl.jaas.config sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin sasl.kerberos.service.name sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor sasl.login.callback.handler.class sasl.login.class sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms sasl.login.refresh.buffer.seconds sasl.login.refresh.min.period.seconds sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter sasl.login.retry.backoff.max.ms sasl.login.retry.backoff.ms sasl.mechanism
sasl.oauthbearer.assertion.algorithm sasl.oauthbearer.assertion.claim.aud sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss sasl.oauthbearer.assertion.claim.jti.include sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub sasl.oauthbearer.assertion.file sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase sasl.oauthbearer.assertion.template.file sasl.oauthbearer.client.credentials.client.id
sasl.oauthbearer.client.credentials.client.secret sasl.oauthbearer.clock.skew.seconds sasl.oauthbearer.expected.audience
sasl.oauthbearer.expected.issuer sasl.oauthbearer.header.urlencode sasl.oauthbearer.jwks.endpoint.refresh.ms
sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms sasl.oauthbearer.jwks.endpoint.retry.backoff.ms sasl.oauthbearer.jwks.endpoint.url
sasl.oauthbearer.jwt.retriever.class sasl.oauthbearer.jwt.validator.class sasl.oauthbearer.scope sasl.oauthbearer.scope.claim.name
sasl.oauthbearer.sub.claim.name sasl.oauthbearer.token.endpoint.url security.protocol security.providers send.buffer.bytes
socket.connection.setup.timeout.max.ms socket.connection.setup.timeout.ms ssl.cipher.suites ssl.enabled.protocols
ssl.endpoint.identification.algorithm ssl.engine.factory.class ssl.key.password ssl.keymanager.algorithm ssl.keystore.certificate.chain
ssl.keystore.key ssl.keystore.location ssl.keystore.password ssl.keystore.type ssl.protocol ssl.provider
ssl.secure.random.implementation ssl.trustmanager.algorithm ssl.truststore.certificates ssl.truststore.location ssl.truststore.password
ssl.truststore.type"""
OF_BOTH = frozenset(NAMES_OF_BOTH.split())
OURS = {"sasl.password", "sasl.username", "ssl.ca.location", "auto.include.jmx.reporter"}
"""The last one is of versions before 4.0."""
OURS_IN_PRODUCERS = {
    "custom.exception.handler.class",
    "drop.invalid.large.records",
    "partitioner",
    "retry.unknown.topic.partition.ms",
    "trace.headers",
}
OURS_IN_CONSUMERS = {"auto.offset.reset.new.partitions"}
"""Of KIP-1327, later than the release whose options are listed above."""

PRODUCERS = OF_BOTH | PRODUCER_OPTION_NAMES - OURS_IN_PRODUCERS | {"partitioner.class"}
CONSUMERS = OF_BOTH | CONSUMER_OPTION_NAMES - OURS_IN_CONSUMERS | {"internal.throw.on.fetch.stable.offset.unsupported"}
each_client = pytest.mark.parametrize(
    ("table", "names", "ours"),
    [(PRODUCER_OPTIONS, PRODUCERS, OURS | OURS_IN_PRODUCERS), (CONSUMER_OPTIONS, CONSUMERS, OURS | OURS_IN_CONSUMERS)],
    ids=["producer", "consumer"],
)


@each_client
def test_every_kafka_option_is_known(table: OptionTable, names: frozenset[str], ours: set[str]) -> None:
    used = {option.name for option in table.options}
    assert len(names) == {PRODUCER_OPTIONS: 113, CONSUMER_OPTIONS: 116}[table]
    assert (used | table.without_effect) - names == ours
    assert names - used - table.without_effect <= table.hinted
    assert not used & table.without_effect


@each_client
def test_option_without_effect_is_accepted_and_reported(table: OptionTable, names: frozenset[str], ours: set[str]) -> None:
    idle = dict.fromkeys(table.without_effect & names, "x")
    assert table.parse({"bootstrap.servers": "b:1", **idle}).ignored == idle


@pytest.mark.parametrize(
    ("table", "hints", "name"),
    [
        *((PRODUCER_OPTIONS, PRODUCER_HINTS, name) for name in [*JAVA_ONLY_OPTIONS, "partitioner.class"]),
        *((CONSUMER_OPTIONS, CONSUMER_HINTS, name) for name in [*JAVA_ONLY_OPTIONS, "internal.throw.on.fetch.stable.offset.unsupported"]),
    ],
)
def test_option_with_an_effect_in_java_is_rejected_with_a_hint(table: OptionTable, hints: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigException) as caught:
        table.parse({"bootstrap.servers": "b:1", name: "x"})
    assert str(caught.value) == f"unknown option {name!r}: {hints[name]}"


@pytest.mark.parametrize("table", [ADMIN_TABLE, READING_TABLE, SINK, SOURCE])
@pytest.mark.parametrize("name", JAVA_ONLY_OPTIONS)
def test_other_tables_have_the_same_hints(table: OptionTable, name: str) -> None:
    assert JAVA_ONLY_OPTIONS[name] in table.unknown(name if table in (ADMIN_TABLE, READING_TABLE) else f"kafka.{name}")
