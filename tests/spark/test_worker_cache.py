"""What a process keeps from one task to the next: the few things used last, and those that fall out are closed."""

from typing import ClassVar

import pytest

from chaffinch.producer.core.exception_handler import ProducerExceptionHandler
from chaffinch.spark.options import ClientOptions, parse
from chaffinch.spark.source.options import SOURCE
from chaffinch.spark.target import client_for, forget_client
from chaffinch.spark.tasks.row_handler import HandlerOptions, handler_for
from chaffinch.spark.tasks.task_sender import forget_producer, producer_for
from chaffinch.spark.worker_cache import ENTRIES_MAX, LruCache


class Counting(ProducerExceptionHandler):
    """Records its `close`, which may fail."""

    closed: ClassVar[list[bool]] = []

    def close(self) -> None:
        self.closed.append(True)
        raise RuntimeError("its own fault")


def test_least_recently_used_entry_is_closed() -> None:
    closed: list[str] = []
    kept: LruCache[str, str] = LruCache(closed.append, count_max=2)
    for key in "abab":
        assert kept.get(key, key.upper) == key.upper()
    kept.get("a", lambda: "never made")
    assert kept.get("c", lambda: "C") == "C"
    assert (closed, len(kept)) == (["B"], 2)
    kept.forget("a")
    kept.forget("a")
    assert (closed, len(kept)) == (["B", "A"], 1)
    kept.clear()
    assert (closed, len(kept)) == (["B", "A", "C"], 0)


def test_failed_creation_is_not_cached() -> None:
    kept: LruCache[str, object] = LruCache(lambda thing: None, count_max=1)
    kept.get("a", lambda: "A")
    with pytest.raises(ZeroDivisionError):
        kept.get("b", lambda: 1 // 0)
    assert kept.get("a", lambda: "never made") == "A"


def test_evicted_producers_are_closed() -> None:
    made = [(("bootstrap.servers", "a:1"), ("linger.ms", number)) for number in range(ENTRIES_MAX + 1)]
    producers = [producer_for(options) for options in made]
    assert ["closed" in repr(producer) for producer in producers] == [True] + [False] * ENTRIES_MAX
    for options in made:
        forget_producer(options)


def test_evicted_handlers_are_closed_and_errors_logged(caplog: pytest.LogCaptureFixture) -> None:
    name = f"{Counting.__module__}.{Counting.__qualname__}"
    for number in range(ENTRIES_MAX + 2):
        handler_for(HandlerOptions(class_name=name, drops_large=False, settings=(("linger.ms", number),)))
    assert len(Counting.closed) >= 2
    assert "close() of the exception handler Counting failed" in caplog.text


def test_evicted_clients_are_closed() -> None:
    made = [
        ClientOptions.of(parse(SOURCE, {"kafka.bootstrap.servers": f"a:{port}", "subscribe": "t"})) for port in range(1, ENTRIES_MAX + 2)
    ]
    first = client_for(made[0])
    others = [client_for(options) for options in made[1:]]
    assert client_for(made[0]) is not first
    assert client_for(made[-1]) is others[-1]
    for options in made:
        forget_client(options)
