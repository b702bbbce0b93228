"""Security of client connections: the options `security.protocol`, `ssl.*` and `sasl.*`, and the settings they result in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from chaffinch.errors import ConfigException
from chaffinch.protocol.security_options import (
    SASL_MECHANISMS,
    SASL_PROTOCOLS,
    SECURITY_PROTOCOLS,
    TLS_OPTIONS,
    TLS_PROTOCOLS,
)
from chaffinch.settings import Option, unshaded

if TYPE_CHECKING:
    from chaffinch.client.authentication import Credentials
    from chaffinch.runtime.tls import TlsSettings

SECURITY_OPTIONS: Final = (
    Option(
        "security.protocol",
        "string",
        "PLAINTEXT",
        "protocol of the connection: with or without TLS and login",
        choices=SECURITY_PROTOCOLS,
        synonyms=tuple((name.lower(), name) for name in SECURITY_PROTOCOLS),
    ),
    Option("ssl.ca.location", "string", None, "librdkafka's name for ssl.truststore.location"),
    *TLS_OPTIONS,
    Option(
        "ssl.endpoint.identification.algorithm",
        "string",
        "https",
        "`https`: the broker's certificate must be for the host name of the connection; empty: for any name",
        choices=("https", ""),
    ),
    Option("sasl.mechanism", "string", None, "mechanism of the login; required with SASL_PLAINTEXT and SASL_SSL", choices=SASL_MECHANISMS),
    Option("sasl.username", "string", None, "user of the login"),
    Option("sasl.password", "string", None, "password of the login"),
    Option("sasl.jaas.config", "string", None, "user and password in Java's format, of PlainLoginModule or ScramLoginModule"),
)

SASL_WITHOUT_EFFECT: Final = frozenset(
    {
        "sasl.kerberos.kinit.cmd",
        "sasl.kerberos.min.time.before.relogin",
        "sasl.kerberos.service.name",
        "sasl.kerberos.ticket.renew.jitter",
        "sasl.kerberos.ticket.renew.window.factor",
        "sasl.login.connect.timeout.ms",
        "sasl.login.read.timeout.ms",
        "sasl.login.refresh.buffer.seconds",
        "sasl.login.refresh.min.period.seconds",
        "sasl.login.refresh.window.factor",
        "sasl.login.refresh.window.jitter",
        "sasl.login.retry.backoff.max.ms",
        "sasl.login.retry.backoff.ms",
        "sasl.oauthbearer.assertion.algorithm",
        "sasl.oauthbearer.assertion.claim.aud",
        "sasl.oauthbearer.assertion.claim.exp.seconds",
        "sasl.oauthbearer.assertion.claim.iss",
        "sasl.oauthbearer.assertion.claim.jti.include",
        "sasl.oauthbearer.assertion.claim.nbf.seconds",
        "sasl.oauthbearer.assertion.claim.sub",
        "sasl.oauthbearer.assertion.file",
        "sasl.oauthbearer.assertion.private.key.file",
        "sasl.oauthbearer.assertion.private.key.passphrase",
        "sasl.oauthbearer.assertion.template.file",
        "sasl.oauthbearer.client.credentials.client.id",
        "sasl.oauthbearer.client.credentials.client.secret",
        "sasl.oauthbearer.clock.skew.seconds",
        "sasl.oauthbearer.expected.audience",
        "sasl.oauthbearer.expected.issuer",
        "sasl.oauthbearer.header.urlencode",
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        "sasl.oauthbearer.jwks.endpoint.url",
        "sasl.oauthbearer.jwt.retriever.class",
        "sasl.oauthbearer.jwt.validator.class",
        "sasl.oauthbearer.scope",
        "sasl.oauthbearer.scope.claim.name",
        "sasl.oauthbearer.sub.claim.name",
        "sasl.oauthbearer.token.endpoint.url",
    }
)
"""Options of GSSAPI and OAUTHBEARER, which `sasl.mechanism` rejects. With other mechanisms they have no effect in Java either."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """TLS and login settings; None: without."""

    tls: TlsSettings | None = None
    credentials: Credentials | None = None

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """From parsed `SECURITY_OPTIONS`. Raises ConfigException for missing or contradictory options. Reads no file."""
        protocol = settings["security.protocol"]
        _reject_unused(settings)
        if protocol == "PLAINTEXT":  # The common case imports nothing.
            return cls()
        return cls(
            tls=_tls(settings) if protocol in TLS_PROTOCOLS else None,
            credentials=_credentials(settings) if protocol in SASL_PROTOCOLS else None,
        )


PLAINTEXT: Final = Security()


def _reject_unused(settings: Mapping[str, Any]) -> None:
    """Raise ConfigException for passwords or certificates that the protocol would not use: the user expects a secure connection."""
    protocol = settings["security.protocol"]
    for prefix, protocols in (("sasl.", SASL_PROTOCOLS), ("ssl.", TLS_PROTOCOLS)):
        if protocol in protocols:
            continue
        rows = [option for option in SECURITY_OPTIONS if option.name.startswith(prefix)]
        unused = [option.name for option in rows if settings[option.name] != option.default]
        if unused:
            suitable = " or ".join(name for name in SECURITY_PROTOCOLS if name in protocols)
            raise ConfigException(
                f"option{'' if len(unused) == 1 else 's'} {', '.join(unused)} cannot be used with security.protocol={protocol}: "
                f"set it to {suitable}, or leave them out"
            )


def _tls(settings: Mapping[str, Any]) -> TlsSettings:
    from chaffinch.runtime.tls import TlsSettings  # OpenSSL is loaded only where it is used.

    return TlsSettings.of(settings)


def _credentials(settings: Mapping[str, Any]) -> Credentials:
    from chaffinch.client.authentication import Credentials

    protocol, mechanism = settings["security.protocol"], settings["sasl.mechanism"]
    if mechanism is None:
        raise ConfigException(f"option sasl.mechanism is missing: security.protocol={protocol} needs one of {', '.join(SASL_MECHANISMS)}")
    user, password, jaas_config = settings["sasl.username"], settings["sasl.password"], settings["sasl.jaas.config"]
    if jaas_config is not None:
        if user is not None or password is not None:
            raise ConfigException("option sasl.jaas.config cannot be given with sasl.username and sasl.password: give one or the other")
        user, password = parse_jaas_config(jaas_config, mechanism)
    for name, value in (("sasl.username", user), ("sasl.password", password)):
        if not value:
            raise ConfigException(f"option {name} is missing: security.protocol={protocol} needs it, or sasl.jaas.config")
        if "\0" in value:
            raise ConfigException(f"option {name} contains a null character, which no mechanism can send")
    return Credentials(mechanism=mechanism, user=user, password=password)


_LOGIN_MODULES: Final = {
    "org.apache.kafka.common.security.plain.PlainLoginModule": ("PLAIN",),
    "org.apache.kafka.common.security.scram.ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
}
"""Login module -> its mechanisms."""

_JAAS_ENTRY: Final = re.compile(r"\s*(?P<module>[\w.$]+)\s+(?P<flag>\w+)\s*(?P<options>.*?)\s*;\s*", re.DOTALL)
_JAAS_OPTION: Final = re.compile(r"""(?P<name>[\w.]+)\s*=\s*(?:"(?P<quoted>(?:\\.|[^"\\])*)"|(?P<bare>[^\s"';]+))\s*""", re.DOTALL)
_JAAS_FLAGS: Final = ("required", "requisite", "sufficient", "optional")
_JAAS_EXAMPLE: Final = 'MODULE required username="..." password="...";'


def parse_jaas_config(text: str, mechanism: str) -> tuple[str, str]:
    """User and password from `sasl.jaas.config`, in the format of the Java clients: one login module with its options.

    Only modules of supported mechanisms are accepted. The ConfigException never quotes the text, which contains a password. Example:

    org.apache.kafka.common.security.scram.ScramLoginModule required username="alice" password="alice's secret";
    """
    entry = _JAAS_ENTRY.fullmatch(text)
    if entry is None or entry["flag"].lower() not in _JAAS_FLAGS:
        raise ConfigException(f"option sasl.jaas.config cannot be parsed: it must be {_JAAS_EXAMPLE}")
    mechanisms = _LOGIN_MODULES.get(unshaded(entry["module"]))
    if mechanisms is None:
        raise ConfigException(f"option sasl.jaas.config names the login module {entry['module']}, supported: {', '.join(_LOGIN_MODULES)}")
    if mechanism not in mechanisms:
        raise ConfigException(f"option sasl.jaas.config is for {' or '.join(mechanisms)}, and sasl.mechanism is {mechanism}")
    options = _jaas_options(entry["options"])
    missing = [name for name in ("username", "password") if name not in options]
    if missing:
        raise ConfigException(f"option sasl.jaas.config has no {missing[0]}: it must be {_JAAS_EXAMPLE}")
    return options["username"], options["password"]


def _jaas_options(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        option = _JAAS_OPTION.match(text, position)
        if option is None:
            raise ConfigException(f"option sasl.jaas.config cannot be parsed after {len(found)} of its options: it must be {_JAAS_EXAMPLE}")
        quoted = option["quoted"]
        found[option["name"]] = option["bare"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = option.end()
    return found
