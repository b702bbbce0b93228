"""Regular expressions of subscriptions: the same names as Python's `re` finds, and never for long."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.broker.core.groups import topic_pattern
from chaffinch.broker.core.groups.topic_pattern import InvalidPattern, TopicPattern

ATOMS = st.sampled_from(["a", "b", "1", ".", "[ab]", "[^a]", "[a-c1]", "\\d", "\\w", "\\.", "\\-", "^", "$", "x{", "[]a]"])
PATTERNS = st.recursive(
    ATOMS,
    lambda inner: (
        st.tuples(inner, inner).map("".join)
        | st.tuples(inner, inner).map("|".join)
        | inner.map(lambda text: f"({text})")
        | st.tuples(inner, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,2}", "{0,1}", "{2,}", "{0}"])).map(
            lambda parts: f"(?:{parts[0]}){parts[1]}"
        )
    ),
    max_leaves=8,
)


@given(PATTERNS, st.lists(st.text("ab1.-x{", max_size=6), min_size=1, max_size=10))
def test_matches_equal_those_of_re(text: str, names: list[str]) -> None:
    pattern, judge = TopicPattern(text), re.compile(text, re.ASCII)
    assert [pattern.matches(name) for name in names] == [judge.fullmatch(name) is not None for name in names]


@given(PATTERNS, st.lists(st.text("ab1.-x{é", max_size=6), min_size=1, max_size=10))
def test_cache_limit_does_not_change_matches(text: str, names: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(topic_pattern, "REMEMBERED_MAX", 3)
        forgetful = TopicPattern(text)
        found = [forgetful.matches(name) for name in names]
        assert forgetful._remembered <= 3 + 1 + len(forgetful._states)
    assert found == [TopicPattern(text).matches(name) for name in names]


def test_many_names_cost_little_more_than_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that subscribes by pattern must not hold a broker with 100,000 topics."""
    pattern = TopicPattern("shop[.]orders.*(eu|us)")
    closures: list[object] = []
    monkeypatch.setattr(TopicPattern, "_closure", _counting(TopicPattern._closure, closures))
    assert sum(pattern.matches(f"shop.orders-{number}.{'eu' if number % 2 else 'jp'}") for number in range(10_000)) == 5_000
    assert len(closures) < 300


def _counting(function: Callable[..., Any], calls: list[object]) -> Callable[..., Any]:
    def counted(*arguments: Any, **keywords: Any) -> Any:
        calls.append(arguments)
        return function(*arguments, **keywords)

    return counted


@pytest.mark.parametrize("text", ["(a*)*b", "(a|a)*b", "(a+)+b", "(.*)*(.*)*(.*)*b", "(a?){100}a{100}b"])
def test_catastrophic_patterns_are_fast(text: str) -> None:
    assert not TopicPattern(text).matches("a" * 249)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("(", "missing )"),
        (")", "unmatched )"),
        ("[", "missing ]"),
        ("[a-", "missing ]"),
        ("[b-a]", "bad range"),
        ("*", "nothing to repeat"),
        ("a{3,1}", "bad repetition"),
        ("a{1001}", "bad repetition"),
        ("(?=a)", "only (?:...)"),
        ("(?P<n>a)", "only (?:...)"),
        ("(a)\\1", "unknown escape"),
        ("\\", "trailing"),
        ("(a{1000}){1000}", "too large"),
        ("(" * 60 + ")" * 60, "nested"),
        ("a" * 1001, "1001 characters"),
    ],
)
def test_invalid_pattern_is_refused_with_its_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidPattern, match=re.escape(reason)):
        TopicPattern(text)
