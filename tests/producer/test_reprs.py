"""`repr` of the public classes: enough to debug, and no password."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa

from chaffinch import EmbeddedBroker, Producer, RecordMetadata, errors

Make = Callable[..., Producer]
LATEST_S = 60


def test_repr_of_a_producer_has_no_password(producer_of: Make, broker: EmbeddedBroker) -> None:
    secrets = {"sasl_mechanism": "PLAIN", "sasl_username": "alice", "sasl_password": "hunter2", "ssl_key_password": "hunter2"}
    producer = producer_of(broker, client_id="shop", transactional_id="t-1", security_protocol="SASL_SSL", **secrets)
    assert repr(producer) == str(producer) == f"<Producer 'shop' of {broker.bootstrap_servers}, transactional.id 't-1'>"
    assert "hunter2" not in repr(producer.settings)
    producer.close()
    assert repr(producer).endswith(", closed>")


def test_repr_of_futures_shows_state_and_outcome(producer_of: Make, broker: EmbeddedBroker) -> None:
    with producer_of(broker, linger_ms=60_000) as producer:
        written = producer.send("orders", b"v", partition=1, timestamp_ms=5)
        assert repr(written) == "<RecordFuture pending>"
        table = producer.send_table("orders", pa.table({"value": [b"v"]}))
        refused = producer.send("not a topic", b"v")
        producer.flush(LATEST_S)
        assert re.fullmatch(r"<RecordFuture failed: InvalidTopicException\(.*'not a topic'.*\)>", repr(refused))
        metadata = "RecordMetadata(topic='orders', partition=1, offset=0, timestamp_ms=5, dropped=False)"
        assert repr(written) == f"<RecordFuture done: {metadata}>"
        assert repr(table) == "<RecordFuture done: SendTableResult(written=1, rejected=0)>"
        assert repr(written.result()) == str(written.result()) == metadata
        assert isinstance(written.result(), RecordMetadata)


def test_repr_of_codes_and_culprits() -> None:
    culprit = errors.Culprit(batch_index=3, code=errors.codes.INVALID_RECORD, message="no value")
    assert repr(culprit) == "Culprit(batch_index=3, code=<ErrorCode INVALID_RECORD (87)>, message='no value')"
    assert str(errors.codes.by_number(999)) == "<ErrorCode UNKNOWN_999 (999)>"
