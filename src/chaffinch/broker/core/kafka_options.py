"""Broker options of Apache Kafka without effect here: accepted and shown, or refused if ignoring them would be unsafe.

Apache Kafka's configuration files are for clusters of machines: most of their options have no counterpart in one process with one store.
They are accepted, their values are validated, and each is logged once. The exceptions are in `REFUSED`: options that restrict clients,
protect data or carry credentials. A broker that ignored them would be less safe than its operator believes, so it does not start.

The options are listed in `kafka_options.csv`: facts only, from the public documentation ("Broker Configs") and the definitions that it is
generated from in version 4.3.1: `KafkaConfig.configDef()`, including internal options, and for the last column
`DynamicBrokerConfig.dynamicConfigUpdateModes()`. For a newer version print both from its jars, one line per key, sorted by name:

- default: `null` for none; nothing for an empty string or list.
- legal: `LEAST..MOST`, where MOST may be missing; `a|b|c` for a choice; `-` if only the type restricts it, or a rule that has no use here.
- changes: `start` (read-only), `running` (cluster-wide, and the three replication rates) or `node` (per broker).
"""

from __future__ import annotations

import csv
import pkgutil
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

from chaffinch.protocol.security_options import SASL_PROTOCOLS, SECURITY_PROTOCOLS, TLS_PROTOCOLS
from chaffinch.settings import INT_MAX, Kind, Option

SHORT_MAX: Final = 2**15 - 1
DOCUMENTATION: Final = "Known to Apache Kafka; without effect here."

_ALL_ALIKE: Final = "all listeners have the same options"
_NO_POLICY: Final = "Java classes are not loaded, so the policy would not be enforced; leave it out"
_NO_RIGHTS: Final = (
    "there are no ACLs: every client that can connect may do everything; leave it out, and restrict connections with "
    "--listener-security (in Python security.protocol) and --users"
)
_PEM: Final = "only PEM files are supported: set ssl.keystore.location to one, and ssl.key.password to the password of its private key"

REFUSED: Final[Mapping[str, str]] = {
    "allow.everyone.if.no.acl.found": _NO_RIGHTS,
    "alter.config.policy.class.name": _NO_POLICY,
    "authorizer.class.name": _NO_RIGHTS,
    "config.providers": "variables are not resolved; write the values themselves into the file of --config-file",
    "create.topic.policy.class.name": _NO_POLICY,
    "remote.log.storage.system.enable": "there is no tiered storage, all records stay in the data directory; leave it out",
    "sasl.jaas.config": "list the users in the file of --users (in Python users=)",
    "sasl.server.callback.handler.class": "Java classes are not loaded; list the users in the file of --users",
    "ssl.engine.factory.class": "Java classes are not loaded; set ssl.keystore.location to a PEM file with the key",
    "ssl.keystore.password": _PEM,
    "ssl.truststore.password": "only PEM files are supported, without a password: set ssl.truststore.location to one",
    "super.users": _NO_RIGHTS,
}
"""Option -> why only its default is accepted, and the alternative. The two that are not in the table are of Apache Kafka's authorizer."""

INSTEAD: Final[Mapping[str, str]] = {
    "advertised.listeners": "--advertise",
    "listener.security.protocol.map": "--listener-security",
    "listeners": "--listen (in Python port=)",
    "log.dir": "--data-dir (in Python data_dir=)",
    "log.dirs": "--data-dir (in Python data_dir=)",
}
"""Replacements that have the same effect here."""

_MORE: Final = ("leader.imbalance.per.broker.percentage",)
"""Without effect, and known only to versions before 4.3."""

_KINDS: Final[Mapping[str, Kind]] = {
    "bool": "bool", "class": "string", "double": "float", "int": "int", "list": "list", "long": "int", "password": "string",
    "short": "int", "string": "string",
}  # fmt: skip
_MOST: Final = {"int": INT_MAX, "short": SHORT_MAX}
_LINES: Final = (pkgutil.get_data(__name__, "kafka_options.csv") or b"").decode().splitlines()
_ROWS: Final = {name: row for name, *row in list(csv.reader(_LINES))[1:]}

TYPES: Final[Mapping[str, str]] = {name: kind for name, (kind, *_) in _ROWS.items()}
"""Option -> its type in Apache Kafka."""

_OF_A_LISTENER: Final = re.compile(r"listener\.name\.[^.]+\.(?:(?:plain|gssapi|oauthbearer|scram-sha-256|scram-sha-512)\.)?(?P<option>.+)")
_OF_PLUGINS: Final = re.compile(r"(?:rsm|rlmm)\.config\..+")
_OF_PROVIDERS: Final = "config.providers."
_PROTECTS: Final = ("ssl.", "sasl.", "connections.max.reauth.ms", "connection.failed.authentication.delay.ms")
_FLUSHES: Final = ("log.flush.interval.messages", "log.flush.interval.ms", "log.flush.scheduler.interval.ms")


def idle_options(with_effect: Collection[str]) -> dict[str, Option]:
    """All options without effect, by name: the table and `REFUSED` without those `with_effect`."""
    names = sorted({*_ROWS, *REFUSED, *_MORE} - set(with_effect))
    return {name: _option(name) for name in names}


def changes_while_running(name: str) -> bool:
    """Whether Apache Kafka allows changing this option at run time. Options of keys, logins and listeners do not count: here they are read
    at start.
    """
    found = _OF_A_LISTENER.fullmatch(name)
    base = found["option"] if found else name
    changes = _ROWS[base][-1] if base in _ROWS else "start"
    return changes == "running" or base == "cordoned.log.dirs"


def of_family(name: str, known: Mapping[str, Option]) -> Option | None:
    """The option of a name that no table contains: an option of one listener (`listener.name.NAME.OPTION`), or of a plug-in. `known`:
    options by name.
    """
    if _OF_PLUGINS.fullmatch(name):
        return Option(name, "any", None, DOCUMENTATION)
    if name.startswith(_OF_PROVIDERS):
        return Option(name, "any", None, DOCUMENTATION, refusal=REFUSED["config.providers"])
    found = _OF_A_LISTENER.fullmatch(name)
    option = known.get(found["option"]) if found else None
    if option is None:
        return None
    protects = option.name.startswith(_PROTECTS) and not option.documentation.startswith(DOCUMENTATION)
    if protects:
        return Option(name, "any", None, DOCUMENTATION, refusal=f"{_ALL_ALIKE}: give {option.name}")
    return replace(option, name=name, default=None, documentation=DOCUMENTATION)


def unprotected_listeners(settings: Mapping[str, Any], ignored: Mapping[str, Any]) -> Iterator[str]:
    """Errors for listeners in `listeners` that Apache Kafka would protect better than `security.protocol` does here."""
    own = settings["security.protocol"]
    pairs = (pair.partition(":") for pair in ignored.get("listener.security.protocol.map", "").split(","))
    protocols = {name.strip(): protocol.strip() for name, _, protocol in pairs}
    for listener in ignored.get("listeners") or ("PLAINTEXT://:9092",):
        name, separator, _ = listener.partition("://")
        protocol = protocols.get(name, name).upper()
        if not separator or name in ignored.get("controller.listener.names", ()) or protocol not in SECURITY_PROTOCOLS:
            continue
        if any(protocol in stricter and own not in stricter for stricter in (TLS_PROTOCOLS, SASL_PROTOCOLS)):
            yield (
                f"listeners: {name} uses {protocol} in Apache Kafka, but would use {own} here: set security.protocol={protocol} "
                "(--listener-security), or leave listeners and listener.security.protocol.map out"
            )


def missing_flushes(settings: Mapping[str, Any]) -> Iterator[str]:
    """Errors for options that require records on disk earlier than `flush.policy` guarantees."""
    for name in _FLUSHES:
        value = settings.get(name)
        if value is not None and value < 2**63 - 1 and settings["flush.policy"] != "always":
            yield (
                f"{name}={value} has no effect here, and a power failure could lose more data than expected: set flush.policy=always, "
                "which syncs all data before it is acknowledged, or leave the option out"
            )


def _option(name: str) -> Option:
    if name not in _ROWS:
        return Option(name, "any", None, DOCUMENTATION, refusal=REFUSED.get(name, ""))
    kind, default, legal, _ = _ROWS[name]
    least, is_range, most = legal.partition("..")
    option = Option(
        name,
        _KINDS[kind],
        None,
        f"{DOCUMENTATION} Use {INSTEAD[name]}." if name in INSTEAD else DOCUMENTATION,
        choices=tuple(legal.split("|")) if "|" in legal else (),
        minimum=int(least) if is_range else None,
        maximum=float(most) if most else _MOST.get(kind),
    )
    if default != "null":
        option = replace(option, default=option.parse(default))
    return replace(option, refusal=REFUSED.get(name, ""))
