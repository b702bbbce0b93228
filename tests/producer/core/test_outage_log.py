"""OutageLog: one line when no broker can be reached and records wait, and one when the outage is over."""

from tests.producer.core.rig import NOT_SENT, Rig

OPTIONS = {"delivery.timeout.ms": 50_000, "request.timeout.ms": 1_000}
LOST = (
    "no broker reachable at 127.0.0.1:9092 (refused); tried for 1200 ms; 2 records wait: "
    "each is retried until delivery.timeout.ms, 50000 ms, is over, the first for 48800 ms more"
)


def lose(rig: Rig, times: int, after_ms: int = 600) -> None:
    for index in range(times):
        rig.disconnect()
        rig.steady_ms += after_ms if index < times - 1 else 0


def cut_off(values: str) -> Rig:
    """A producer whose records wait, and whose questions about the cluster get no answer."""
    rig = Rig(options=OPTIONS)
    rig.hold = {type(rig.requests[0])}
    if values:
        rig.send(values)
    return rig


def test_outage_is_logged_once_and_its_end_once() -> None:
    rig = cut_off("ab")
    lose(rig, times=5)
    assert rig.reports == [LOST]
    rig.sleep(2_000)
    rig.release()
    assert rig.reports[1:] == ["the broker at 127.0.0.1:9092 answers after an outage of 4400 ms; 2 records wait"]
    lose(rig, times=5)
    assert [report.split(" reachable")[0] for report in rig.reports if "still asking" not in report][2:] == ["no broker"]


def test_a_broker_that_is_back_soon_is_no_outage() -> None:
    rig = cut_off("a")
    lose(rig, times=3, after_ms=300)
    rig.sleep(1_500)
    rig.release()
    assert rig.reports == []


def test_an_outage_that_lasts_is_logged_again_after_growing_pauses() -> None:
    rig = cut_off("ab")
    lose(rig, times=3)
    begun_ms = rig.steady_ms
    lines = []
    while rig.steady_ms < begun_ms + 35_000:
        known = len(rig.reports)
        rig.sleep(500)
        lines += [(rig.steady_ms - begun_ms, line) for line in rig.reports[known:]]
    (first_ms, first), (second_ms, _) = lines
    assert (first_ms, second_ms) == (10_000, 30_000)
    assert first == (
        "orders-0 at 127.0.0.1:9092, for 11200 ms: no broker reachable at 127.0.0.1:9092 (refused); "
        "2 records without an outcome, still asking, for up to 38800 ms more (delivery.timeout.ms)"
    )


def test_nothing_is_logged_while_no_record_waits() -> None:
    rig = cut_off("")
    lose(rig, times=5)
    assert rig.reports == []
    rig.send("a")
    lose(rig, times=1)
    assert "; 1 record waits: " in rig.reports[0]


def test_a_batch_that_came_back_waits_too() -> None:
    rig = cut_off("ab")
    rig.answer(NOT_SENT)
    lose(rig, times=3)
    assert "; 2 records wait: " in rig.reports[0]
