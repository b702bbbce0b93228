"""`kafka.` options about TLS and logins reach the connections of Spark processes, and no output."""

import pickle
from pathlib import Path

import pytest

from chaffinch import EmbeddedBroker
from chaffinch.errors import ConfigException
from chaffinch.spark.sink.options import SinkOptions
from chaffinch.spark.source.options import SourceOptions
from chaffinch.spark.target import client_for, forget_client
from tests.support.certificates import Certificates


def options_for(broker: str, root: str) -> dict[str, str]:
    """As Spark hands them over: in lower case."""
    return {
        "kafka.bootstrap.servers": broker,
        "kafka.security.protocol": "SASL_SSL",
        "kafka.ssl.truststore.location": root,
        "kafka.sasl.mechanism": "SCRAM-SHA-256",
        "kafka.sasl.username": "alice",
        "kafka.sasl.password": "s3cret",
        "kafka.connections.max.idle.ms": "7",
    }


def test_driver_and_tasks_authenticate(tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    config = {"security.protocol": "SASL_SSL", "ssl.keystore.location": certificates.server}
    with EmbeddedBroker(topics=["orders"], config=config, users={"alice": "s3cret"}) as broker:
        given = options_for(broker.bootstrap_servers, certificates.root)
        sink = SinkOptions.parse({**given, "topic": "orders"}, is_stream=True)
        source = SourceOptions.parse({**given, "subscribe": "orders"})
        assert sink.client == source.client
        assert sink.client.connections.idle_ms_max == 7
        travelled = pickle.loads(pickle.dumps(sink)).client
        assert "s3cret" not in repr(sink)
        try:
            assert client_for(travelled).refresh_metadata(["orders"]).partition_count("orders") == 1
        finally:
            forget_client(travelled)


def test_missing_security_option_is_refused_before_query_starts() -> None:
    given = options_for("a:1", "/nowhere")
    del given["kafka.sasl.password"]
    with pytest.raises(ConfigException, match=r"sasl\.password is missing"):
        SinkOptions.parse({**given, "topic": "orders"}, is_stream=True)
