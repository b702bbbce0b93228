"""Which offsets a micro-batch and its tasks get: properties over all starts, ends and limits, and the words for what is lost."""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.identifiers import TopicPartition
from chaffinch.spark.source.offset_ranges import OffsetRange, backlog, clamp_to_available, divided, limited, losses, ranges

PLACES = [TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)]
A0, A1, B0 = PLACES


@st.composite
def progress(draw: st.DrawFn, size_max: int = 10**6) -> tuple[dict[TopicPartition, int], dict[TopicPartition, int]]:
    """(start, latest) of some partitions; now and then one ends before its start."""
    positions = draw(st.lists(st.sampled_from(PLACES), unique=True))
    start = {tp: draw(st.integers(0, 10**12)) for tp in positions}
    return start, {tp: max(0, offset + draw(st.integers(-3, size_max))) for tp, offset in start.items()}


class TestLimited:
    @given(progress(), st.integers(1, 10**6))
    def test_limit_is_kept_or_each_partition_gets_one_offset(
        self, given_progress: tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]], limit: int
    ) -> None:
        start, latest = given_progress
        end = limited(start, latest, limit)
        assert end.keys() == latest.keys()
        assert all(end[tp] <= latest[tp] for tp in end)
        assert sum(max(0, end[tp] - start[tp]) for tp in end) <= limit + len(end)
        # No partition starves, so a query reaches its end.
        assert all(end[tp] > start[tp] for tp in end if latest[tp] > start[tp])

    @pytest.mark.parametrize(
        ("start", "latest", "limit", "expected"),
        [
            ({A0: 0, A1: 0}, {A0: 30, A1: 10}, 20, {A0: 15, A1: 5}),
            ({A0: 5, A1: 0}, {A0: 1000, A1: 1}, 10, {A0: 14, A1: 1}),
            ({A0: 0, A1: 7}, {A0: 3, A1: 9}, 5, {A0: 3, A1: 9}),
            ({A0: 9, A1: 0}, {A0: 4, A1: 10}, 5, {A0: 4, A1: 5}),
            ({A0: 2**62}, {A0: 2**63 - 1}, 2**62, {A0: 2**63 - 1}),
        ],
        ids=["as to what they have", "never nothing", "all of it", "cut off", "large numbers"],
    )
    def test_limited_examples(
        self, start: Mapping[TopicPartition, int], latest: Mapping[TopicPartition, int], limit: int, expected: Mapping[TopicPartition, int]
    ) -> None:
        assert limited(start, latest, limit) == expected

    def test_backlog_counts_each_partition_once(self) -> None:
        assert backlog({A0: 5, A1: 9}, {A0: 8, A1: 2, B0: 4}) == 7


spans = st.lists(
    st.builds(
        lambda tp, start, size: OffsetRange(tp, start, start + size), st.sampled_from(PLACES), st.integers(0, 99), st.integers(0, 60)
    ),
    max_size=4,
)


class TestDivided:
    @given(spans, st.integers(1, 50), st.none() | st.integers(1, 30))
    def test_divided_ranges_cover_each_offset_once(
        self, given_spans: Sequence[OffsetRange], parts_min: int, offsets_max: int | None
    ) -> None:
        parts = divided(given_spans, parts_min, offsets_max)
        offsets = [(tp, offset) for tp, start, end in parts for offset in range(start, end)]
        assert offsets == [(tp, offset) for tp, start, end in given_spans for offset in range(start, end)]
        assert all(part.start < part.end for part in parts)
        assert offsets_max is None or all(part.end - part.start <= offsets_max for part in parts)
        assert len(parts) >= min(parts_min, len(offsets))

    @given(spans)
    def test_default_is_one_task_per_partition(self, given_spans: Sequence[OffsetRange]) -> None:
        assert divided(given_spans, 1, None) == [span for span in given_spans if span.start < span.end]

    def test_largest_range_is_divided_first(self) -> None:
        parts = divided([OffsetRange(A0, 0, 100), OffsetRange(A1, 50, 60)], 4, None)
        assert parts == [(A0, 0, 33), (A0, 33, 66), (A0, 66, 100), (A1, 50, 60)]


class TestLosses:
    @pytest.mark.parametrize(
        ("start", "end", "first_of_new", "expected", "texts"),
        [
            ({A0: 1}, {A0: 5}, {}, (), []),
            ({A0: 1}, {A0: 5, A1: 7}, {A1: 0}, (), []),
            ({A0: 1}, {A0: 5, A1: 7}, {A1: 3}, (), ["a-1 is new and begins at offset 3, not 0"]),
            ({A0: 1, B0: 4}, {A0: 5}, {}, (), ["b-0 is missing, deleted or no longer subscribed to: offset 4 came next"]),
            ({A0: 1}, {A0: 5}, {}, (A0, B0), ["b-0 is missing, deleted or no longer subscribed to: it was not read"]),
            ({A0: 9}, {A0: 5}, {}, (), ["a-0 ends at offset 5, offset 9 came next: it was truncated, or deleted and created again"]),
        ],
    )
    def test_losses_have_texts(
        self,
        start: Mapping[TopicPartition, int],
        end: Mapping[TopicPartition, int],
        first_of_new: Mapping[TopicPartition, int],
        expected: tuple[TopicPartition, ...],
        texts: Sequence[str],
    ) -> None:
        assert losses(start, end, first_of_new, expected) == texts

    def test_remaining_ranges_are_read(self) -> None:
        found = ranges({A0: 9, B0: 4}, {A1: 7, A0: 12}, {A1: 3})
        assert found == [(A0, 9, 12), (A1, 3, 7)]

    def test_positions_are_clamped_to_available_range(self) -> None:
        moved, texts = clamp_to_available("endingOffsets", {A0: 1, A1: 9, B0: 5}, {A0: 3, A1: 0, B0: 5}, {A0: 8, A1: 8, B0: 5})
        assert moved == {A0: 3, A1: 8, B0: 5}
        assert texts == [
            "endingOffsets: a-0 begins at offset 3, offset 1 was requested", "endingOffsets: a-1 ends at offset 8, offset 9 was requested",
        ]  # fmt: skip


@st.composite
def histories(draw: st.DrawFn) -> list[dict[TopicPartition, int]]:
    """What a query finds at each trigger: partitions grow, and new ones come."""
    steps, latest = [], {A0: draw(st.integers(0, 50))}
    for _ in range(draw(st.integers(1, 6))):
        known = PLACES[: draw(st.integers(len(latest), len(PLACES)))]
        latest = {tp: latest.get(tp, 0) + draw(st.integers(0, 200)) for tp in known}
        steps.append(latest)
    return steps


@given(histories(), st.integers(1, 60), st.integers(1, 5), st.none() | st.integers(1, 20))
def test_batches_read_everything_once_in_order(
    steps: Sequence[Mapping[TopicPartition, int]], limit: int, parts_min: int, offsets_max: int | None
) -> None:
    position: Mapping[TopicPartition, int] = {A0: 0}
    read: dict[TopicPartition, list[int]] = {tp: [] for tp in PLACES}
    for latest in steps:
        while position != latest:
            first_of_new = dict.fromkeys(latest.keys() - position.keys(), 0)
            end = limited({**position, **first_of_new}, latest, limit)
            assert losses(position, end, first_of_new) == []
            for tp, start, stop in divided(ranges(position, end, first_of_new), parts_min, offsets_max):
                read[tp].extend(range(start, stop))
            assert end != position, "there is progress until everything is read"
            position = end
    assert read == {tp: list(range(steps[-1].get(tp, 0))) for tp in PLACES}
