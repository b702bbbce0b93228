"""Records that `send` itself refuses: callbacks, their thread, and error texts."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from chaffinch import EmbeddedBroker, Producer
from chaffinch.errors import InvalidTopicException, RecordTooLargeException
from chaffinch.identifiers import GroupMetadata, TopicPartition

Make = Callable[..., Producer]
LATEST_S = 60
LARGE = bytes(2_000_000)


class TestTooLarge:
    """A reader of the log has many records: the error names the topic of this one, and that it was not sent."""

    @pytest.mark.parametrize(("partition", "where"), [(None, "orders"), (2, "orders-2")])
    @pytest.mark.parametrize("option", ["max.request.size", "buffer.memory"])
    def test_too_large_record_error_names_topic_size_and_option(
        self, producer_of: Make, broker: EmbeddedBroker, partition: int | None, where: str, option: str
    ) -> None:
        with producer_of(broker, **{"max_request_size": 3_000_000, option.replace(".", "_"): 100_000}) as producer:
            error = producer.send("orders", LARGE, partition=partition).exception(0)
        assert isinstance(error, RecordTooLargeException)
        assert error.topic_partition == TopicPartition("orders", -1 if partition is None else partition)
        assert re.fullmatch(
            rf"{where}: MESSAGE_TOO_LARGE \(10\): the record \(no key\) takes 20000\d\d bytes, {option} allows 100000: "
            "it was not sent; not stored; "
            "correct the data or the configuration, the producer stays usable",
            str(error),
        )

    def test_commit_error_names_the_topic_of_a_too_large_record(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send("orders", LARGE)
            with pytest.raises(RecordTooLargeException, match=r"^orders: .*: it was not sent"):
                producer.commit_transaction()


HALF_SURROGATE = "\ud800"  # Half a surrogate pair.
ORDERS_0 = TopicPartition("orders", 0)


class TestGroup:
    """Group metadata that cannot be encoded raises at the call, and fails neither the transaction nor the producer."""

    @pytest.mark.parametrize(
        ("group", "error", "text"),
        [
            ("", TypeError, r" must be a group id or a GroupMetadata, not ''$"),
            (None, TypeError, r" must be a group id or a GroupMetadata, not None$"),
            (("g", 1), TypeError, r" must be a group id or a GroupMetadata, not \('g', 1\)$"),
            (HALF_SURROGATE, ValueError, r", in its group_id, cannot be encoded as UTF-8"),
            (GroupMetadata(""), ValueError, r" has an empty group_id: it must be the id of a group, as in the option group\.id$"),
            (GroupMetadata(5), TypeError, r" has the group_id 5, which is not a str$"),  # type: ignore[arg-type]
            ("\u00e4" * 20_000, ValueError, r" has a group_id of 40000 bytes: it must have at most 32767$"),
            (GroupMetadata("g", "x"), TypeError, r" has the generation_id 'x', which is not an int$"),  # type: ignore[arg-type]
            (GroupMetadata("g", True), TypeError, r" has the generation_id True, which is not an int$"),
            (
                GroupMetadata("g", 2**40),
                ValueError,
                r" has the generation_id 1099511627776: it must be from 0 to 2147483647, or -1 for none$",
            ),
            (GroupMetadata("g", -2), ValueError, r" has the generation_id -2: it must be from 0 to"),
            (GroupMetadata("g", 1, 5), TypeError, r" has the member_id 5, which is not a str$"),  # type: ignore[arg-type]
            (GroupMetadata("g", 1, "m" * 40_000), ValueError, r" has a member_id of 40000 bytes: it must have at most 32767$"),
            (GroupMetadata("g", 1, "m", 5), TypeError, r" has the group_instance_id 5, which is not a str$"),  # type: ignore[arg-type]
            (GroupMetadata("g", 1, "m", HALF_SURROGATE), ValueError, r", in its group_instance_id, cannot be encoded as UTF-8"),
        ],
    )
    def test_group_is_validated_before_state_changes(
        self, producer_of: Make, broker: EmbeddedBroker, group: Any, error: type[Exception], text: str
    ) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            producer.init_transactions()
            with producer.transaction():
                with pytest.raises(error, match="^argument group_metadata" + text):
                    producer.send_offsets_to_transaction({ORDERS_0: 1}, group)
                producer.send_offsets_to_transaction({ORDERS_0: 1}, GroupMetadata("g", np.int64(-1)))  # type: ignore[arg-type]


LONG_TEXT = "x" * 100_000


class TestLongValues:
    """Long values are cut in error texts, so that the text behind them is readable and data stays out of the log."""

    @pytest.mark.parametrize(
        ("call", "text"),
        [
            (lambda p: p.send("orders", HALF_SURROGATE + LONG_TEXT), "... is half a surrogate pair"),
            (lambda p: p.send("orders", headers=[("a", LONG_TEXT.encode(), 1)]), "one entry is ('a', b'x"),
            (lambda p: p.send("orders", headers=[(HALF_SURROGATE + LONG_TEXT, b"")]), "... is half a surrogate pair"),
            (lambda p: p.send("orders", headers=[(LONG_TEXT, 5)]), "...] must be bytes, str or None, not int"),
            (lambda p: p.flush(LONG_TEXT), "a number of seconds, not 'x"),
            (lambda p: p.send_offsets_to_transaction({LONG_TEXT: 1}, "g"), "must be a TopicPartition, not 'x"),
            (lambda p: p.send_offsets_to_transaction({ORDERS_0: LONG_TEXT}, "g"), "an OffsetAndMetadata, not 'x"),
            (
                lambda p: p.send_offsets_to_transaction({ORDERS_0: 1}, GroupMetadata("g", 1, HALF_SURROGATE + LONG_TEXT)),
                "... is half a surrogate pair",
            ),
            (lambda p: p.send_table("orders", pa.table({"value": ["v"], LONG_TEXT: [1]})), "... is unknown; allowed: one each of key, "),
            (lambda p: p.send_table("orders", pa.table({"value": [{LONG_TEXT: 1}]})), "...; allowed: binary, "),
        ],
    )
    def test_long_values_in_error_texts_are_cut(
        self, producer_of: Make, broker: EmbeddedBroker, call: Callable[[Producer], Any], text: str
    ) -> None:
        with producer_of(broker, transactional_id="t") as producer:
            producer.init_transactions()
            with producer.transaction(), pytest.raises((TypeError, ValueError)) as raised:
                call(producer)
        assert text in str(raised.value)
        assert len(str(raised.value)) < 500

    def test_illegal_topic_name_in_error_text_is_cut(self, producer_of: Make, broker: EmbeddedBroker) -> None:
        with producer_of(broker) as producer:
            error = producer.send(LONG_TEXT).exception(0)
            table = producer.send_table(None, pa.table({"value": ["v"], "topic": [LONG_TEXT]})).result(LATEST_S)
        assert isinstance(error, InvalidTopicException)
        assert [error.message] == table.rejected.column("message").to_pylist()
        assert error.message.endswith("... is not a legal name: a name has letters, digits, '.', '_' and '-', at most 249 of them")
        assert len(error.message) < 500


class TestOnDelivery:
    """The callback is called within `send`, on the caller's thread."""

    @pytest.mark.parametrize("ending", [SystemExit(3), KeyboardInterrupt()], ids=repr)
    @pytest.mark.parametrize("options", [{}, {"drop_invalid_large_records": True}], ids=["refused", "dropped"])
    def test_base_exception_in_on_delivery_is_raised_by_send(
        self, producer_of: Make, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, ending: BaseException, options: dict[str, Any]
    ) -> None:
        made: list[Any] = []
        called: list[Any] = []

        def end(*outcome: object) -> None:
            called.append(outcome)
            raise ending

        with producer_of(broker, **options) as producer:
            new_future = producer._new_future

            def recording_new_future() -> Any:
                made.append(new_future())
                return made[-1]

            monkeypatch.setattr(producer, "_new_future", recording_new_future)
            with pytest.raises(type(ending)) as raised:
                producer.send("orders", LARGE, on_delivery=end)
            assert raised.value is ending
            (future,) = made
            assert called == [(future.result(0) if options else None, future.exception(0))]
            assert producer.send("orders", b"v").result(LATEST_S).offset == 0

    def test_exception_in_on_delivery_is_logged_and_the_future_returned(
        self, producer_of: Make, broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(*_: object) -> None:
            raise ZeroDivisionError("in the callback")

        with caplog.at_level(logging.ERROR), producer_of(broker) as producer:
            assert isinstance(producer.send("orders", LARGE, on_delivery=fail).exception(0), RecordTooLargeException)
        assert "a delivery callback raised" in caplog.text
