"""The words that plain English does without are counted as `make lint` counts them, and a count that rises is found."""

from __future__ import annotations

import pytest

from tools import plain_words


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("the caller is told so", "told"),
        ("def was_told(self): ...", "told"),
        ("The broker tells it", "tells"),
        ("Nobody waits", "nobody"),
        ("whoever is first", "whoever"),
        ("read anew", "anew"),
        ("a value of Python's", "of Python's"),
        ("'abc' is no integer", "is no number"),
        ("at most so many bytes", "so many"),
    ],
)
def test_word_is_counted_once(text: str, word: str) -> None:
    found = plain_words.count({"src/chaffinch/broker/core/x.py": text})
    assert {key: number for key, number in found.items() if number} == {(word, "broker"): 1}


EXEMPT = ["file.tell()", "REPLAYED_MEANWHILE", "that of Kafka's `AbortedTxn`", "there is no topic x"]


@pytest.mark.parametrize("text", ["foretold", "what tells apart good rows from bad ones", "so many that it fails", "Python's own", *EXEMPT])
def test_other_words_are_not_counted(text: str) -> None:
    assert not any(plain_words.count({"src/chaffinch/x.py": text}).values())


@pytest.mark.parametrize(
    ("path", "package"),
    [
        ("src/chaffinch/settings.py", "chaffinch"),
        ("src/chaffinch/broker/core/append.py", "broker"),
        ("src/pyspark_chaffinch/__init__.py", "pyspark_chaffinch"),
        ("tests/broker/test_stop.py", "tests"),
        ("simulation/world.py", "simulation"),
    ],
)
def test_package_of_a_path(path: str, package: str) -> None:
    assert plain_words.package_of(path) == package


def test_only_a_rise_is_reported() -> None:
    before = {("told", "broker"): 2, ("anew", "broker"): 1}
    assert plain_words.risen(before, {("told", "broker"): 1, ("anew", "broker"): 1}) == []
    assert plain_words.risen(before, {("told", "broker"): 3, ("nobody", "cli"): 1}) == ["broker: 'told' 2 -> 3", "cli: 'nobody' 0 -> 1"]


def test_no_count_of_the_repository_has_risen() -> None:
    assert plain_words.risen(plain_words.read_counts(), plain_words.count(plain_words.source_files())) == []
