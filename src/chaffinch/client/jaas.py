"""`sasl.jaas.config` as Java's clients take it: one login module with its options, of those whose mechanisms are spoken here.

org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="alice's secret";
"""

from __future__ import annotations

import re
from typing import Final

from chaffinch.errors import ConfigException
from chaffinch.settings import unshaded

MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}
"""Login module -> its mechanisms."""

_ENTRY: Final = re.compile(r"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)\s*(?P<options>.*?)\s*;\s*", re.DOTALL)
_OPTION: Final = re.compile(r"""(?P<name>[\w.]+)\s*=\s*(?:"(?P<quoted>(?:\\.|[^"\\])*)"|(?P<bare>[^\s"';]+))\s*""", re.DOTALL)
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_EXAMPLE: Final = 'MODULE required username="..." password="...";'


def parse(text: str, mechanism: str) -> tuple[str, str]:
    """User and password for a mechanism. ConfigException, which never quotes the text: it has a password in it."""
    entry = _ENTRY.fullmatch(text)
    if entry is None or entry["flag"].lower() not in _FLAGS:
        raise ConfigException(f"option sasl.jaas.config cannot be read: it must be {_EXAMPLE}")
    mechanisms = MODULES.get(unshaded(entry["module"]))
    if mechanisms is None:
        raise ConfigException(f"option sasl.jaas.config names the login module {entry['module']}: known are {', '.join(MODULES)}")
    if mechanism not in mechanisms:
        raise ConfigException(f"option sasl.jaas.config is for {' or '.join(mechanisms)}, and sasl.mechanism is {mechanism}")
    options = _options(entry["options"])
    missing = [name for name in ("username", "password") if name not in options]
    if missing:
        raise ConfigException(f"option sasl.jaas.config has no {missing[0]}: it must be {_EXAMPLE}")
    return options["username"], options["password"]


def _options(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        option = _OPTION.match(text, position)
        if option is None:
            raise ConfigException(f"option sasl.jaas.config cannot be read behind {len(found)} of its options: it must be {_EXAMPLE}")
        quoted = option["quoted"]
        found[option["name"]] = option["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = option.end()
    return found
