"""Partitioner for records and tables: Java's partitions for keys, and an even distribution of the others."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import islice, pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.errors import ConfigException
from chaffinch.identifiers import TopicPartition
from chaffinch.producer.core.options import parse_options
from chaffinch.producer.core.partitioner import MURMUR2, ROUND_ROBIN, Partitioner, partition_of_key
from chaffinch.producer.core.producer_core import ProducerCore
from chaffinch.producer.plugins import partition_rule
from chaffinch.records import kernels
from chaffinch.records.columns import RecordColumns
from tests.producer.core.rig import Rig, new_record

JAVA = [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)]
"""From Kafka's own tests of Utils.murmur2."""
JAVA_OF_100 = [(b"21", 40), (b"foobar", 66), (b"a-little-bit-long-string", 12), (b"abc", 7)]
"""Utils.toPositive(hash) % 100."""


def partitioner(count: int = 10, waiting: list[int] | None = None, **more: Any) -> Partitioner:
    """A partitioner for a topic whose partitions are all writable."""
    loads = list(range(count)), waiting or [0] * count
    return Partitioner(random.Random(1), lambda _: loads, **{"batch_bytes": 1_000, **more})


def choose(made: Partitioner, key: bytes | None, value: bytes | None = b"", count: int = 10, size: int = 100, begins: bool = True) -> int:
    return made.choose("orders", key, value, count, size, lambda *_: begins)


def columns(keys: list[bytes | None], value_bytes: int = 10) -> RecordColumns:
    return RecordColumns.from_lists(keys, [bytes(value_bytes)] * len(keys), [0] * len(keys))


def no_preference(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int | None:
    return None


class TestKeys:
    @pytest.mark.parametrize(("key", "expected"), JAVA)
    def test_murmur2_equals_java(self, key: bytes, expected: int) -> None:
        assert kernels.REFERENCE.murmur2_of_key(key, len(key)) == expected & 0xFFFFFFFF

    @pytest.mark.parametrize(("key", "expected"), JAVA_OF_100)
    def test_partition_of_a_key_equals_java(self, key: bytes, expected: int) -> None:
        assert choose(partitioner(), key, count=100) == expected
        assert partitioner().choose_for_columns("orders", columns([key]), 100, [], 1_000).tolist() == [expected]

    @given(st.lists(st.binary(max_size=40), min_size=1, max_size=20), st.integers(1, 50))
    def test_single_keys_and_columns_agree(self, keys: list[bytes], count: int) -> None:
        assert columns(list(keys)).murmur2_partitions(count).tolist() == [partition_of_key(key, count) for key in keys]

    def test_ignored_keys_stick_to_one_partition(self) -> None:
        made = partitioner(ignores_keys=True)
        assert len({choose(made, b"%d" % i, size=10) for i in range(50)}) == 1
        table = columns([b"%d" % i for i in range(50)])
        assert len(set(made.choose_for_columns("orders", table, 10, [], 10_000).tolist())) == 1


class TestSticky:
    """KIP-794: batch.size bytes go to one partition, then the next is chosen."""

    def test_sticks_until_the_batch_is_full(self) -> None:
        made = partitioner()
        begins = [True] + [False] * 8 + [True]
        chosen = [choose(made, None, begins=each) for each in begins]
        assert len(set(chosen[:9])) == 1
        assert made._sticky["orders"] == (chosen[9], 161), "the tenth does not fit and begins the next batch"

    def test_bytes_of_small_batches_add_up(self) -> None:
        """With few records no batch is ever full: bytes are counted, not batches."""
        made = partitioner()
        chosen = [choose(made, None, size=300) for _ in range(300)]
        runs = [len(run) for run in "".join("x" if a == b else " " for a, b in pairwise(chosen)).split()]
        assert set(chosen) == set(range(10))
        assert min(runs) == 2, "three of 300 bytes fill a batch of 1000"

    def test_sticks_to_a_growing_batch(self) -> None:
        made = partitioner()
        assert len({choose(made, None, begins=False) for _ in range(100)}) == 1

    def test_all_partitions_are_chosen(self) -> None:
        made = partitioner()
        assert {choose(made, None, count=10) for _ in range(1_000)} == set(range(10))

    def test_partitions_with_leaders_are_preferred(self) -> None:
        loads: tuple[list[int], list[int]] = [3, 4], [0, 0]
        made = Partitioner(random.Random(1), lambda _: loads, batch_bytes=100)
        assert {choose(made, None) for _ in range(100)} == {3, 4}
        table = made.choose_for_columns("orders", columns([None] * 100), 10, [3, 4], 100)
        assert set(table.tolist()) == {3, 4}
        nowhere = Partitioner(random.Random(1), lambda _: ([], []), batch_bytes=100)
        assert {choose(nowhere, None) for _ in range(200)} == set(range(10))

    def test_table_is_spread_evenly(self) -> None:
        table = columns([None] * 1_000)
        chosen = partitioner().choose_for_columns("orders", table, 10, [], 10 * int(table.sizes()[0]))
        assert set(Counter(chosen.tolist()).values()) == {100}
        assert (chosen.reshape(100, 10) == chosen[::10, None]).all(), "a batch at a time"

    def test_batches_rotate_over_partitions_with_leaders(self) -> None:
        made = partitioner()
        assert sorted(islice(made.turns(4, [0, 2, 3]), 3)) == [0, 2, 3]
        assert sorted(islice(made.turns(4, []), 4)) == [0, 1, 2, 3]
        turns = list(islice(made.turns(3, [0, 1, 2]), 6))
        assert turns[:3] == turns[3:]
        assert {next(made.turns(3, [0, 1, 2])) for _ in range(100)} == {0, 1, 2}, "the first one is random"

    @pytest.mark.parametrize(
        ("keys", "more", "expected"),
        [
            ([None, None], {}, True),
            ([None, b"k"], {}, False),
            ([b"k", b"l"], {"ignores_keys": True}, True),
            ([None, None], {"rule": ROUND_ROBIN}, False),
            ([None, None], {"rule": no_preference}, False),
        ],
    )
    def test_spreads_is_true_only_for_rows_without_preference(self, keys: list[bytes | None], more: dict[str, Any], expected: bool) -> None:
        assert partitioner(**more).spreads(columns(keys)) is expected


class TestAdaptive:
    """A partition is chosen with weight (longest queue + 1 - own queue), counted in batches: the shorter its queue, the more often."""

    def test_partitions_are_chosen_in_proportion_to_free_capacity(self) -> None:
        made = partitioner(3, waiting=[0, 4, 2], batch_bytes=100)
        counts = Counter(choose(made, None, count=3) for _ in range(9_000))
        assert [round(counts[i] / 1_000) for i in range(3)] == [5, 1, 3]

    def test_disabled_adaptive_ignores_load(self) -> None:
        made = partitioner(3, waiting=[0, 400, 2], batch_bytes=100, is_adaptive=False)
        counts = Counter(choose(made, None, count=3) for _ in range(3_000))
        assert [round(counts[i] / 1_000) for i in range(3)] == [1, 1, 1]

    def test_changed_loads_are_used(self) -> None:
        waiting = [0, 50]
        made = Partitioner(random.Random(1), lambda _: ([0, 1], waiting), batch_bytes=100)
        choose(made, None, count=2)
        waiting[:] = [50, 0]
        made.loads_changed()
        assert sum(choose(made, None, count=2) for _ in range(1_000)) > 900


class TestRoundRobin:
    def test_partitions_rotate_whatever_the_key(self) -> None:
        made = partitioner(3, rule=ROUND_ROBIN)
        assert [choose(made, key, count=3) for key in (None, b"a", b"a", b"b", None)] == [0, 1, 2, 0, 1]

    def test_table_continues_the_rotation(self) -> None:
        made = partitioner(3, rule=ROUND_ROBIN)
        choose(made, None, count=3)
        assert made.choose_for_columns("orders", columns([b"k"] * 5), 3, [0, 1, 2], 1_000).tolist() == [1, 2, 0, 1, 2]
        assert choose(made, None, count=3) == 0


def by_first_byte(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int | None:
    return key[0] % partition_count if key else None


class ByLength:
    """A rule that decides about a whole table in one call."""

    def __call__(self, topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
        raise AssertionError("a table is not split into records")

    def for_columns(self, topic: str, records: RecordColumns, partition_count: int) -> Any:
        return np.diff(records.key_offsets) % partition_count


class TestFunction:
    def test_function_is_called_per_record_and_none_falls_back_to_the_key(self) -> None:
        made = partitioner(rule=by_first_byte)
        assert made.call_function("orders", b"\x07abc", None, 10) == 7
        assert made.choose_for_columns("orders", columns([b"\x07", b"\x13"]), 10, [], 1_000).tolist() == [7, 9]
        silent = partitioner(rule=lambda *_: None)
        assert silent.call_function("orders", b"abc", None, 100) is None
        assert choose(silent, b"abc", count=100) == 7

    def test_for_columns_decides_about_a_whole_table(self) -> None:
        made = partitioner(rule=ByLength())
        assert made.choose_for_columns("orders", columns([b"a", b"bcd", None]), 10, [], 1_000).tolist() == [1, 3, 0]

    @pytest.mark.parametrize("wrong", [10, -2, "1", 1.0, True])
    def test_non_partition_raises_at_the_call(self, wrong: Any) -> None:
        made = partitioner(rule=lambda *_: wrong)
        with pytest.raises(ValueError, match=r"the partitioner .*<lambda> chose .*partitions 0 to 9"):
            made.call_function("orders", b"k", None, 10)
        with pytest.raises(ValueError, match="partitions 0 to 9"):
            made.choose_for_columns("orders", columns([b"k"]), 10, [], 1_000)

    @pytest.mark.parametrize("is_table", [False, True])
    def test_exception_of_the_function_has_a_note_with_its_name(self, is_table: bool) -> None:
        def strict(topic: str, key: bytes | None, value: bytes | None, partition_count: int) -> int:
            raise LookupError("no key")

        made = partitioner(rule=strict)
        with pytest.raises(LookupError) as raised:
            made.choose_for_columns("orders", columns([None]), 10, [], 1_000) if is_table else made.call_function("orders", None, None, 10)
        (note,) = raised.value.__notes__
        assert re.fullmatch(r"raised by the partitioner .*strict, which was called for a record of 'orders'", note)

    def test_result_of_another_shape_is_rejected(self) -> None:
        rule = ByLength()
        rule.for_columns = lambda *_: np.zeros(3)  # type: ignore[method-assign]
        with pytest.raises(ValueError, match=r"float64 .* for 1 records"):
            partitioner(rule=rule).choose_for_columns("orders", columns([b"k"]), 10, [], 1_000)


class TestOption:
    @pytest.mark.parametrize(
        ("given", "expected"),
        [
            ("murmur2", MURMUR2),
            ("round_robin", ROUND_ROBIN),
            ("org.apache.kafka.clients.producer.RoundRobinPartitioner", ROUND_ROBIN),
            ("kafkashaded.org.apache.kafka.clients.producer.RoundRobinPartitioner", ROUND_ROBIN),
            (by_first_byte, by_first_byte),
            (f"{__name__}.by_first_byte", by_first_byte),
        ],
    )
    def test_rule_names_and_functions_are_accepted(self, given: Any, expected: Any) -> None:
        assert partition_rule(parse_options({"bootstrap.servers": "a:1", "partitioner": given})) == expected

    @pytest.mark.parametrize("given", ["random", "no.such.thing", ByLength, 7])
    def test_invalid_rule_is_refused(self, given: Any) -> None:
        with pytest.raises(ConfigException, match="option partitioner"):
            partition_rule(parse_options({"bootstrap.servers": "a:1", "partitioner": given}))


class TestCore:
    """What the core passes to the partitioner: loads, availability, options."""

    def append_without_key(self, rig: Rig, size: int = 100) -> int:
        """Append a record without a key. Returns its partition."""
        core = rig.core
        chosen = core.choose_partition("orders", None, b"v", rig.partitions, size)
        core.append(TopicPartition("orders", chosen), new_record(None, b"v", "v", chosen, size=size), rig.steady_ms)
        return chosen

    def test_all_batches_but_one_are_full(self) -> None:
        rig = Rig(options={"batch.size": 1_000, "linger.ms": 1_000}, partitions=4)
        for _ in range(90):
            self.append_without_key(rig)
        batches = [len(batch.futures) for queue in rig.core.accumulator._queues.values() for batch in queue.closed]  # type: ignore[union-attr]
        growing = [queue.growing for queue in rig.core.accumulator._queues.values() if queue.growing is not None]
        assert set(batches) == {9}
        assert len(growing) <= 1

    def test_batch_closed_for_a_new_one_needs_a_round(self) -> None:
        rig = Rig(options={"batch.size": 1_000, "linger.ms": 1_000})
        core = rig.core
        for _ in range(9):
            self.append_without_key(rig)
        chosen = core.choose_partition("orders", None, b"v", 2, 100)
        assert core.append(TopicPartition("orders", chosen), new_record(None, b"v", "v", chosen, size=100), rig.steady_ms)[1], (
            "the core needs a round"
        )

    @pytest.mark.parametrize(("timeout_ms", "expected"), [(0, {0, 1}), (50, {1})])
    def test_partition_of_a_slow_leader_is_excluded(self, timeout_ms: int, expected: set[int]) -> None:
        options = {"partitioner.availability.timeout.ms": timeout_ms, "max.in.flight.requests.per.connection": 1}
        rig = Rig(options=options, nodes=2)
        rig.send("a")
        rig.send("b")
        rig.sleep(51)
        assert set(rig.core.availability.partitions("orders")) == expected

    def test_without_adaptive_no_partition_is_excluded(self) -> None:
        options = {"partitioner.availability.timeout.ms": 50, "max.in.flight.requests.per.connection": 1}
        rig = Rig(options={**options, "partitioner.adaptive.partitioning.enable": False}, nodes=2)
        rig.send("a")
        rig.send("b")
        rig.sleep(51)
        assert set(rig.core.availability.partitions("orders")) == {0, 1}

    @pytest.mark.parametrize(("is_adaptive", "least"), [(True, 0), (False, 300)])
    def test_partition_with_more_queued_bytes_is_chosen_less(self, is_adaptive: bool, least: int) -> None:
        rig = Rig(options={"batch.size": 10, "partitioner.adaptive.partitioning.enable": is_adaptive})
        for _ in range(500):
            rig.append("_")  # All to the first partition.
        chosen = [rig.core.choose_partition("orders", None, b"v", 2, 100) for _ in range(1_000)]
        assert least <= chosen.count(0) <= least + 300

    @pytest.mark.parametrize(("ignores", "count"), [(True, 1), (False, 2)])
    def test_ignore_keys_option_ignores_keys(self, ignores: bool, count: int) -> None:
        rig = Rig(options={"partitioner.ignore.keys": ignores})
        assert len({rig.core.choose_partition("orders", b"%d" % key, b"v", 2, 10) for key in range(50)}) == count

    @pytest.mark.parametrize("rule", [by_first_byte, MURMUR2, ROUND_ROBIN])
    def test_has_function_only_for_a_function(self, rule: Any) -> None:
        core = ProducerCore(parse_options({"bootstrap.servers": "a:1"}), random.Random(1), rule=rule)
        assert core.partitioner.has_function is (rule is by_first_byte)
