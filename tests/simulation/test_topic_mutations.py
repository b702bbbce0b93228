"""Promises about topics that are deleted and made again, broken once by hand, in the broker and in the producer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from chaffinch.broker.core.topics import Topic, TopicRegistry
from chaffinch.producer.core import culprits
from chaffinch.producer.core.exception_handler import HandlerSaid
from tests.simulation.mutation import REMADE, Mutation, Patch, find


def takes_old_ids(patch: Patch) -> None:
    """What is for a topic that was deleted goes to the next of its name."""
    delete, by_id = TopicRegistry.delete, TopicRegistry.by_id
    names: dict[UUID, str] = {}

    def deletes(self: TopicRegistry, name: str) -> None:
        topic = self.get(name)
        assert topic is not None
        names[topic.topic_id] = name
        delete(self, name)

    def finds(self: TopicRegistry, topic_id: UUID) -> Topic | None:
        return by_id(self, topic_id) or self.get(names.get(topic_id, ""))

    patch.setattr(TopicRegistry, "delete", deletes)
    patch.setattr(TopicRegistry, "by_id", finds)


def does_not_try_again(patch: Patch) -> None:
    """The handler's wish that a record be tried again counts as none: it fails."""
    unknown = culprits._unknown_topic

    def forgetful(answer: Any, situation: Any) -> Any:
        said = situation.said and HandlerSaid(swallowed=situation.said.swallowed)
        return unknown(answer, replace(situation, said=said))

    patch.setattr(culprits, "_unknown_topic", forgetful)


def drops_what_is_unknown(patch: Patch) -> None:
    """Whatever the handler says: it is dropped."""
    unknown = culprits._unknown_topic

    def drops(answer: Any, situation: Any) -> Any:
        said = situation.said and HandlerSaid(swallowed=frozenset(range(situation.count)))
        return unknown(answer, replace(situation, said=said))

    patch.setattr(culprits, "_unknown_topic", drops)


FORTY: dict[str, Any] = {"knobs": {**REMADE, "has_handler": True}, "seeds": 40}
MUTATIONS = [
    Mutation(name="ids of deleted topics are taken for those of new ones", breaks=takes_old_ids, says=("was made",), **FORTY),
    Mutation(name="a handler says RETRY and the record fails", breaks=does_not_try_again, says=("for no good reason",), seeds=40),
    Mutation(name="a handler says RETRY and the record is dropped", breaks=drops_what_is_unknown, says=("was dropped",), seeds=40),
]


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_broken_promise_is_found(mutation: Mutation, monkeypatch: Patch) -> None:
    find(mutation, monkeypatch)
