"""Broker options that may change while the broker runs: what was given at start, overlaid with what the journal remembers."""

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
    """The broker's options as they stand now.

    At run time they are set in two layers, as strings: defaults of the cluster, and above them options of a node that was named. The nodes
    of one process share their options, so what is set for one of them holds for all.
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
        """As of any mapping. Topics ask for all that they leave to the broker: what a mapping does by itself takes four times as long."""
        return self._values.get(name, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def overrides(self, *, is_default: bool) -> Mapping[str, str]:
        """What was set at run time in one of the layers."""
        return self._defaults if is_default else self._named

    def static(self, name: str) -> Any:
        """The value an option had at start."""
        return self._static[name] if name in self._static else self._static.ignored[name]

    def static_or_none(self, name: str) -> Any:
        """The value an option was given at start; None when it was not."""
        return self.static(name) if name in self.given else None

    @property
    def given(self) -> frozenset[str]:
        """Names set at start, with or without an effect."""
        return self._static.given | self._static.ignored.keys()

    def check(self, overrides: Mapping[str, str], *, is_default: bool) -> dict[str, Any]:
        """All values as they would be with this layer. Raises RequestRefused (42, as Kafka) when these cannot be set at run time.

        Contradictions that are there already stand in nobody's way: what was given at the last start may have brought them.
        """
        merged = self._merged(overrides, self._named) if is_default else self._merged(self._defaults, overrides)
        there = options.contradictions(self)
        wrong = [each for each in options.contradictions(merged) if each not in there]
        if wrong:
            raise RequestRefused(codes.INVALID_REQUEST, join_errors(wrong))
        return merged

    def alter(self, overrides: Mapping[str, str], *, is_default: bool) -> None:
        """Replace what was set at run time in a layer. Raises as `check`, and StorageError; nothing has changed then."""
        merged = self.check(overrides, is_default=is_default)
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
