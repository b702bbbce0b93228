"""Dynamic broker settings: the options given at start, overridden by those set at run time and stored in the journal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from chaffinch.broker.core import options
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import ConfigException, codes
from chaffinch.settings import Settings, join_errors
from chaffinch.storage.journal import Journal

_DEFAULTS_KEY = b"broker.options"
_NAMED_KEY = b"broker.options.named"


class DynamicSettings(Mapping[str, Any]):
    """The current broker options.

    At run time options are set as strings in two layers: defaults of the cluster, and options of a named node, which override them. The
    nodes of one process share their options, so an option set for one node applies to all.
    """

    def __init__(self, static: Settings, journal: Journal) -> None:
        self._static = static
        self._journal = journal
        remembered = journal.items()
        self._defaults: dict[str, str] = json.loads(remembered.get(_DEFAULTS_KEY, b"{}"))
        self._named: dict[str, str] = json.loads(remembered.get(_NAMED_KEY, b"{}"))
        self._values = self._merged(self._defaults, self._named)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Like `Mapping.get`. Topics read all their defaults with it, and the inherited method takes four times as long."""
        return self._values.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def overrides(self, *, is_default: bool) -> Mapping[str, str]:
        """The options set at run time in one of the layers."""
        return self._defaults if is_default else self._named

    def static(self, name: str) -> Any:
        """The value of an option at start."""
        return self._static[name] if name in self._static else self._static.ignored[name]

    def static_or_none(self, name: str) -> Any:
        """The value given for an option at start; None if it was not given."""
        return self.static(name) if name in self.given else None

    @property
    def given(self) -> frozenset[str]:
        """Names of the options given at start, with or without an effect."""
        return self._static.given | self._static.ignored.keys()

    def validate(self, overrides: Mapping[str, str], *, is_default: bool) -> dict[str, Any]:
        """All values with this layer replaced. Raises RequestRefused (42, as Kafka) if it cannot be set at run time.

        Existing contradictions do not prevent a change: the options of the last start may have caused them.
        """
        merged = self._merged(overrides, self._named) if is_default else self._merged(self._defaults, overrides)
        there = options.contradictions(self)
        wrong = [each for each in options.contradictions(merged) if each not in there]
        if wrong:
            raise RequestRefused(codes.INVALID_REQUEST, join_errors(wrong))
        return merged

    def alter(self, overrides: Mapping[str, str], *, is_default: bool) -> None:
        """Replace the options of a layer. Raises the errors of `validate`, and StorageError; nothing has changed then."""
        merged = self.validate(overrides, is_default=is_default)
        self._journal.put({_DEFAULTS_KEY if is_default else _NAMED_KEY: json.dumps(dict(overrides)).encode()})
        if is_default:
            self._defaults = dict(overrides)
        else:
            self._named = dict(overrides)
        self._values = merged

    def _merged(self, *layers: Mapping[str, str]) -> dict[str, Any]:
        overrides = {name: value for layer in layers for name, value in layer.items()}
        fixed = sorted(name for name in overrides if options.find(name) is not None and not options.may_change(name))
        if fixed:
            why = ": it has no effect here" if options.is_idle(fixed[0]) else ""
            raise RequestRefused(codes.INVALID_REQUEST, f"option {fixed[0]} cannot be changed while the broker runs{why}")
        try:
            parsed = options.BROKER_OPTIONS.parse(overrides)
        except ConfigException as error:
            raise RequestRefused(codes.INVALID_REQUEST, str(error)) from None
        return {**self._static, **{name: parsed[name] for name in parsed.given}}
