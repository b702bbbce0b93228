"""OutageLog: one line when no broker can be reached and records wait, and one when the outage is over."""

from tests.producer.core.rig import NOT_SENT, Rig

OPTIONS = {"delivery.timeout.ms": 50_000, "request.timeout.ms": 1_000}
LOST = (
    "no broker reachable at 127.0.0.1:9092 (refused); tried for 1200 ms; 2 records wait: "
    "each is retried until delivery.timeout.ms, 50000 ms, is over, the first for another 48800 ms"
)


def fail_connections(rig: Rig, times: int, after_ms: int = 600) -> None:
    for index in range(times):
        rig.disconnect()
        rig.steady_ms += after_ms if index < times - 1 else 0


def rig_without_metadata(values: str) -> Rig:
    """A producer whose records wait, and whose metadata requests get no response."""
    rig = Rig(options=OPTIONS)
    rig.hold = {type(rig.requests[0])}
    if values:
        rig.send(values)
    return rig


def test_outage_is_logged_once_and_its_end_once() -> None:
    rig = rig_without_metadata("ab")
    fail_connections(rig, times=5)
    assert rig.reports == [LOST]
    rig.sleep(2_000)
    rig.release()
    assert rig.reports[1:] == ["the broker at 127.0.0.1:9092 responds after an outage of 4400 ms; 2 records wait"]
    fail_connections(rig, times=5)
    assert [report.split(" reachable")[0] for report in rig.reports if "retrying" not in report][2:] == ["no broker"]


def test_short_outage_is_not_logged() -> None:
    rig = rig_without_metadata("a")
    fail_connections(rig, times=3, after_ms=300)
    rig.sleep(1_500)
    rig.release()
    assert rig.reports == []


def test_long_outage_is_logged_at_growing_intervals() -> None:
    rig = rig_without_metadata("ab")
    fail_connections(rig, times=3)
    begun_ms = rig.steady_ms
    lines = []
    while rig.steady_ms < begun_ms + 35_000:
        count = len(rig.reports)
        rig.sleep(500)
        lines += [(rig.steady_ms - begun_ms, line) for line in rig.reports[count:]]
    (first_ms, first), (second_ms, _) = lines
    assert (first_ms, second_ms) == (10_000, 30_000)
    assert first == (
        "orders-0 at 127.0.0.1:9092, for 11200 ms: no broker reachable at 127.0.0.1:9092 (refused); "
        "2 records without an outcome, retrying for up to 38800 ms more (delivery.timeout.ms)"
    )


def test_outage_without_waiting_records_is_not_logged() -> None:
    rig = rig_without_metadata("")
    fail_connections(rig, times=5)
    assert rig.reports == []
    rig.send("a")
    fail_connections(rig, times=1)
    assert "; 1 record waits: " in rig.reports[0]


def test_batch_in_backoff_counts_as_waiting() -> None:
    rig = rig_without_metadata("ab")
    rig.answer(NOT_SENT)
    fail_connections(rig, times=3)
    assert "; 2 records wait: " in rig.reports[0]
