"""Regular expressions of subscriptions: the same names as Python's `re` finds, and never for long."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
def test_as_the_standard_library_has_it(text: str, names: list[str]) -> None:
    pattern, judge = TopicPattern(text), re.compile(text, re.ASCII)
    assert [pattern.matches(name) for name in names] == [judge.fullmatch(name) is not None for name in names]


@pytest.mark.parametrize("text", ["(a*)*b", "(a|a)*b", "(a+)+b", "(.*)*(.*)*(.*)*b", "(a?){100}a{100}b"])
def test_what_makes_others_hang_takes_no_time(text: str) -> None:
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
def test_refused(text: str, reason: str) -> None:
    with pytest.raises(InvalidPattern, match=re.escape(reason)):
        TopicPattern(text)
