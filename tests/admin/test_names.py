"""A single string as names is rejected before a request is sent: each of its characters may be a topic."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chaffinch.admin.groups import delete_groups, describe_groups
from chaffinch.admin.topics import delete_topics, describe_topics, find_topics
from chaffinch.client.arguments import checked_names


class UnusableClient:
    """A client that nothing may be asked of."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for")


@pytest.mark.parametrize("call", [delete_topics, find_topics, describe_topics, delete_groups, describe_groups])
@pytest.mark.parametrize("names", ["orders", b"orders", bytearray(b"orders"), ""], ids=repr)
def test_single_string_is_rejected_as_names(call: Callable[..., object], names: Any) -> None:
    with pytest.raises(TypeError, match=r"^argument names must be a list of names, not .*: no request was sent$"):
        call(UnusableClient(), names)


@pytest.mark.parametrize("names", [["b", "a", "b"], ("b", "a"), {"b": 1, "a": 2}, iter("ba")], ids=repr)
def test_duplicate_names_are_removed(names: list[str] | Iterator[str]) -> None:
    assert checked_names(names) == ["b", "a"]
