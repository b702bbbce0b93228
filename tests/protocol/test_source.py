"""Generated functions: lines that know their fields."""

from __future__ import annotations

import pytest

from chaffinch.protocol.source import Leaf, Source


def test_failure_maps_to_its_line_and_variables() -> None:
    source = Source()
    source.add(0, "def run(values):", Leaf("start", ""))
    source.add(1, "for index in range(len(values)):", Leaf("values", ""))
    source.add(2, "1 / values[index]", Leaf("values[{index}]", ""))
    run = source.function("run", "a test")
    with pytest.raises(ZeroDivisionError) as caught:
        run([1, 0])
    traceback = caught.value.__traceback__
    assert traceback is not None
    leaves, variables = source.leaves_of(traceback.tb_next)
    assert leaves[0].path.format_map(variables) == "values[1]"


def test_the_same_constant_keeps_its_name() -> None:
    source = Source()
    first, second = object(), object()
    names = [source.constant("value_", value) for value in (first, second, first)]
    assert names[0] == names[2] != names[1]
    assert source.scope[names[1]] is second


def test_names_are_never_used_twice() -> None:
    source = Source()
    assert len({source.fresh("size") for _ in range(5)} | {source.constant("size", object())}) == 6
