"""Broker options that may change while the broker runs: what was given at start, overlaid with what the journal remembers."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from chaffinch.broker.core import options
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import ConfigException, codes
from chaffinch.settings import Settings
from chaffinch.storage.journal import Journal

_KEY = b"broker.options"


class DynamicSettings(Mapping[str, Any]):
    """The broker's options as they stand now. `overrides` were set at run time, as strings."""

    def __init__(self, static: Settings, journal: Journal) -> None:
        self._static = static
        self._journal = journal
        self.overrides: dict[str, str] = json.loads(journal.items().get(_KEY, b"{}"))
        self._values = self._merged(self.overrides)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def static(self, name: str) -> Any:
        """The value an option had at start."""
        return self._static[name]

    def static_or_none(self, name: str) -> Any:
        """The value an option was given at start; None when it was not."""
        return self._static[name] if name in self._static.given else None

    @property
    def given(self) -> frozenset[str]:
        """Names set at start."""
        return self._static.given

    @property
    def ignored(self) -> Mapping[str, Any]:
        """Names set at start that Kafka knows and that have no effect here."""
        return self._static.ignored

    def check(self, overrides: Mapping[str, str]) -> None:
        """Raises RequestRefused (INVALID_CONFIG) when these cannot be the options set at run time."""
        self._merged(overrides)

    def alter(self, overrides: Mapping[str, str]) -> None:
        """Replace the options set at run time. Raises as `check`, and StorageError; nothing has changed then."""
        merged = self._merged(overrides)
        self._journal.put({_KEY: json.dumps(dict(overrides)).encode()})
        self.overrides = dict(overrides)
        self._values = merged

    def _merged(self, overrides: Mapping[str, str]) -> dict[str, Any]:
        fixed = sorted(name for name in overrides if name in options.BROKER_OPTIONS_BY_NAME and name not in options.DYNAMIC)
        if fixed:
            raise RequestRefused(codes.INVALID_CONFIG, f"option {fixed[0]} cannot be changed while the broker runs")
        try:
            parsed = options.parse(overrides)
        except ConfigException as error:
            raise RequestRefused(codes.INVALID_CONFIG, str(error)) from None
        return {**self._static, **{name: parsed[name] for name in parsed.given}}
