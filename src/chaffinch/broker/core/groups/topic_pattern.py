r"""Regular expressions for topic names and transactional ids, matched in time proportional to the name, so that no client's pattern can
block the broker.

Kafka's brokers use RE2. This is the part of RE2's syntax that makes sense for topic names, with the same meaning: literals, `.`, classes
(`[a-z]`, `[^...]`, `\d`, `\w`, `\s` and their opposites), groups (`(...)`, `(?:...)`), `|`, the repetitions `*`, `+`, `?`, `{n}`,
`{n,}`, `{n,m}` (also lazy, which makes no difference here), `^` and `$`. The whole name must match. Backreferences and lookaround do not
exist, as in RE2.

A pattern is compiled to a non-deterministic automaton (Thompson's construction) whose states are followed in parallel. Sets of states and
their transitions are cached, so that most characters of most names cost one lookup.
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import Final

PATTERN_LENGTH_MAX: Final = 1000
STATES_MAX: Final = 5000
REPEAT_MAX: Final = 1000
"""RE2's own limit."""
DEPTH_MAX: Final = 50
REMEMBERED_MAX: Final = 20_000
"""Cached states and transitions of one pattern: about 2 MB. Beyond this the cache is cleared."""

_OTHER: Final = "\0"
"""Represents every non-ASCII character (allowed in transactional ids) in classes that do not name it."""

_ALPHABET: Final = frozenset(string.printable) | {_OTHER}
_CLASSES: Final = {
    "d": frozenset(string.digits),
    "w": frozenset(string.ascii_letters + string.digits + "_"),
    "s": frozenset(" \t\n\r\f\v"),
}
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class InvalidPattern(ValueError):
    """The text is not a valid regular expression, or is too large; the message says where."""


@dataclass(slots=True)
class _State:
    """A state: either consumes a character of `accepts` and continues at `next[0]`, or continues at all of `next` without a character.
    `anchor`: only at that end of the name.
    """

    accepts: frozenset[str] | None = None
    anchor: str = ""
    next: list[int] = field(default_factory=list)


_Fragment = tuple[int, int]
"""(first state, last state); the last one has no outgoing transition yet."""


@dataclass(slots=True, eq=False)
class _Node:
    """A set of states reached together. `is_match`: the name may end here. `edges`: character -> next set."""

    states: frozenset[int]
    is_match: bool
    edges: dict[str, _Node] = field(default_factory=dict)


class TopicPattern:
    """One compiled expression. Raises InvalidPattern."""

    def __init__(self, text: str) -> None:
        if len(text) > PATTERN_LENGTH_MAX:
            raise InvalidPattern(f"{len(text)} characters, limit {PATTERN_LENGTH_MAX}")
        parser = _Parser(text)
        first, self._last = parser.parse()
        self._states = parser.states
        self._nodes: dict[frozenset[int], _Node] = {}
        self._remembered = 0
        at_start = frozenset({first})
        self._start = _Node(self._closure(at_start, at_start=True, at_end=False), self._is_last(at_start, at_start=True))

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        node = self._start
        for character in name:
            node = node.edges.get(character) or self._follow(node, character)
            if not node.states:
                return False
        return node.is_match

    def _follow(self, node: _Node, character: str) -> _Node:
        """The next set of states for a character that is not cached."""
        if self._remembered > REMEMBERED_MAX:
            self._nodes.clear()
            self._start.edges.clear()
            self._remembered = 0
        sought = (character,) if character in _ALPHABET else (character, _OTHER)
        among = (self._states[number] for number in node.states)
        taking = frozenset(state.next[0] for state in among if state.accepts and not state.accepts.isdisjoint(sought))
        states = self._closure(taking, at_start=False, at_end=False)
        following = self._nodes.get(states)
        if following is None:
            following = self._nodes[states] = _Node(states, self._is_last(states, at_start=False))
            self._remembered += len(states)
        node.edges[character] = following
        self._remembered += 1
        return following

    def _is_last(self, states: frozenset[int], *, at_start: bool) -> bool:
        return self._last in self._closure(states, at_start=at_start, at_end=True)

    def _closure(self, states: frozenset[int], *, at_start: bool, at_end: bool) -> frozenset[int]:
        """All states reachable without consuming a character."""
        found, pending = set(states), list(states)
        while pending:
            state = self._states[pending.pop()]
            if state.accepts is not None or (state.anchor == "^" and not at_start) or (state.anchor == "$" and not at_end):
                continue
            fresh = [number for number in state.next if number not in found]
            found.update(fresh)
            pending += fresh
        return frozenset(found)


class _Parser:
    """Recursive descent: alternatives of sequences of repeated atoms."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._depth = 0
        self.states: list[_State] = []

    def parse(self) -> _Fragment:
        fragment = self._alternatives()
        if self._position < len(self._text):
            raise self._fault("unmatched )")
        return fragment

    def _alternatives(self) -> _Fragment:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise self._fault("too many nested groups")
        fragments = [self._sequence()]
        while self._accept("|"):
            fragments.append(self._sequence())
        self._depth -= 1
        if len(fragments) == 1:
            return fragments[0]
        last = self._state()
        for _, end in fragments:
            self.states[end].next.append(last)
        return self._state(next=[start for start, _ in fragments]), last

    def _sequence(self) -> _Fragment:
        first = last = self._state()
        while self._position < len(self._text) and self._text[self._position] not in "|)":
            start, end = self._repeated()
            self.states[last].next.append(start)
            last = end
        return first, last

    def _repeated(self) -> _Fragment:
        begin = self._position
        fragment = self._atom()
        bounds = self._bounds()
        if bounds is None:
            return fragment
        self._accept("?")
        least, most = bounds
        after = self._position
        first = last = self._state()
        copies = least if most is None else most
        for number in range(max(copies, 1)):
            # The atom is parsed again for each copy: its states cannot be shared.
            self._position = begin
            start, finish = fragment if number == 0 else self._atom()
            optional = number >= least
            entry = self._state(next=[start])
            exit_ = self._state()
            self.states[finish].next.append(exit_)
            if optional:
                self.states[entry].next.append(exit_)
            if most is None and number == max(copies, 1) - 1:
                self.states[exit_].next.append(start)
            self.states[last].next.append(entry)
            last = exit_
        self._position = after
        if most == 0:
            return self._empty()
        return self._grown_out(first, last)

    def _grown_out(self, first: int, last: int) -> _Fragment:
        """Add an end state: the last state of a loop already has its transition back."""
        end = self._state()
        self.states[last].next.append(end)
        return first, end

    def _empty(self) -> _Fragment:
        state = self._state()
        return state, state

    def _bounds(self) -> tuple[int, int | None] | None:
        """The bounds (minimum, maximum or None) of the repetition that follows; None if there is none."""
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._accept(sign):
                return bounds
        end = self._text.find("}", self._position)
        if self._position >= len(self._text) or self._text[self._position] != "{" or end < 0:
            return None
        least, comma, most = self._text[self._position + 1 : end].partition(",")
        if not _is_number(least) or (most and not _is_number(most)):
            return None  # As in RE2, a brace that does not form a repetition is a literal.
        low = int(least)
        high = None if comma and not most else int(most) if most else low
        if max(low, high or 0) > REPEAT_MAX or (high is not None and high < low):
            raise self._fault("bad repetition")
        self._position = end + 1
        return low, high

    def _atom(self) -> _Fragment:
        character = self._text[self._position]
        self._position += 1
        if character == "(":
            return self._group()
        if character == "[":
            return self._one_of(self._class())
        if character == ".":
            return self._one_of(_ALPHABET - {"\n"})
        if character in "^$":
            state = self._state(anchor=character)
            end = self._state()
            self.states[state].next.append(end)
            return state, end
        if character == "\\":
            return self._one_of(self._escaped())
        if character in "*+?":
            raise self._fault(f"nothing to repeat before {character}")
        return self._one_of(frozenset({character}))

    def _group(self) -> _Fragment:
        if self._text.startswith("?", self._position):
            if not self._text.startswith("?:", self._position):
                raise self._fault("only (?:...) groups may begin with ?")
            self._position += 2
        fragment = self._alternatives()
        if not self._accept(")"):
            raise self._fault("missing )")
        return fragment

    def _class(self) -> frozenset[str]:
        is_opposite = self._accept("^")
        found: set[str] = set()
        is_first = True
        while is_first or not self._accept("]"):
            if self._position >= len(self._text):
                raise self._fault("missing ]")
            low = self._class_item()
            if len(low) == 1 and self._text.startswith("-", self._position) and not self._text.startswith("-]", self._position):
                self._position += 1
                if self._position >= len(self._text):
                    raise self._fault("missing ]")
                high = self._class_item()
                if len(high) != 1 or min(high) < min(low):
                    raise self._fault("bad range")
                found.update(character for character in _ALPHABET if min(low) <= character <= min(high))
            found |= low
            is_first = False
        return _ALPHABET - found if is_opposite else frozenset(found)

    def _class_item(self) -> frozenset[str]:
        character = self._text[self._position]
        self._position += 1
        return self._escaped() if character == "\\" else frozenset({character})

    def _escaped(self) -> frozenset[str]:
        if self._position >= len(self._text):
            raise self._fault("trailing \\")
        character = self._text[self._position]
        self._position += 1
        if character.lower() in _CLASSES:
            chosen = _CLASSES[character.lower()]
            return chosen if character.islower() else _ALPHABET - chosen
        if character in _CONTROLS:
            return frozenset({_CONTROLS[character]})
        if character.isalnum():
            raise self._fault(f"unknown escape \\{character}")
        return frozenset({character})

    def _one_of(self, accepts: frozenset[str]) -> _Fragment:
        end = self._state()
        return self._state(accepts=accepts, next=[end]), end

    def _state(self, *, accepts: frozenset[str] | None = None, anchor: str = "", next: list[int] | None = None) -> int:
        if len(self.states) >= STATES_MAX:
            raise self._fault("too large")
        self.states.append(_State(accepts, anchor, next or []))
        return len(self.states) - 1

    def _accept(self, sign: str) -> bool:
        if not self._text.startswith(sign, self._position):
            return False
        self._position += len(sign)
        return True

    def _fault(self, reason: str) -> InvalidPattern:
        return InvalidPattern(f"{reason} at character {self._position}")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9
