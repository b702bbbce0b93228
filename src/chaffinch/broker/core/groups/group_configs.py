"""Options that single consumer groups have instead of the broker's (KIP-848), set while the broker runs and kept in its journal.

A group need not exist to have some. Limits and their code are those of Apache Kafka's GroupConfig.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from chaffinch.broker.core.groups.group_options import BROKER_SYNONYMS, GROUP_CONFIGS, HEARTBEAT_INTERVAL, SESSION_TIMEOUT
from chaffinch.broker.core.refusal import RequestRefused
from chaffinch.errors import ConfigException, codes
from chaffinch.storage.journal import Journal

_PREFIX: Final = b"group.options/"


class GroupConfigs:
    """See the module. `settings`: the broker's options as they stand."""

    def __init__(self, settings: Mapping[str, Any], journal: Journal) -> None:
        self._settings = settings
        self._journal = journal
        kept = ((key.removeprefix(_PREFIX).decode(), value) for key, value in journal.items().items() if key.startswith(_PREFIX))
        self._overrides: dict[str, dict[str, str]] = {group_id: json.loads(value) for group_id, value in kept}

    def group_ids(self) -> list[str]:
        """Of those that have set something."""
        return sorted(self._overrides)

    def overrides(self, group_id: str) -> Mapping[str, str]:
        """What the group has set, as it was given."""
        return self._overrides.get(group_id, {})

    def heartbeat_interval_ms(self, group_id: str) -> int:
        return self._value(group_id, HEARTBEAT_INTERVAL)

    def session_timeout_ms(self, group_id: str) -> int:
        return self._value(group_id, SESSION_TIMEOUT)

    def check(self, overrides: Mapping[str, str]) -> None:
        """Raises RequestRefused (INVALID_CONFIG) for what a group cannot set."""
        try:
            given = GROUP_CONFIGS.parse(overrides)
        except ConfigException as error:
            raise RequestRefused(codes.INVALID_CONFIG, str(error)) from None
        for name in sorted(given.given):
            least, most = (f"group.consumer.{end}.{name.removeprefix('consumer.')}" for end in ("min", "max"))
            if not self._settings[least] <= given[name] <= self._settings[most]:
                allowed = f"it must be at least {self._settings[least]} ({least}) and at most {self._settings[most]} ({most})"
                raise RequestRefused(codes.INVALID_CONFIG, f"option {name} cannot be {given[name]}: {allowed}")
        session_ms, heartbeat_ms = (given[name] or self._settings[BROKER_SYNONYMS[name]] for name in (SESSION_TIMEOUT, HEARTBEAT_INTERVAL))
        if session_ms <= heartbeat_ms:
            wrong = f"{SESSION_TIMEOUT} is {session_ms} and {HEARTBEAT_INTERVAL} is {heartbeat_ms}: sessions must be longer"
            raise RequestRefused(codes.INVALID_CONFIG, wrong)

    def alter(self, group_id: str, overrides: Mapping[str, str]) -> None:
        """Replace what a group has set; a member hears of it with its next heartbeat. Raises as `check`, and StorageError; nothing has
        changed then."""
        self.check(overrides)
        self._journal.put({_PREFIX + group_id.encode(): json.dumps(dict(overrides)).encode() if overrides else None})
        if overrides:
            self._overrides[group_id] = dict(overrides)
        else:
            self._overrides.pop(group_id, None)

    def _value(self, group_id: str, name: str) -> int:
        own = self._overrides.get(group_id, {}).get(name)
        value: int = self._settings[BROKER_SYNONYMS[name]] if own is None else int(own)
        return value
