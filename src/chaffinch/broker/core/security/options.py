"""TLS and login options of the broker, shared by all its listeners. Names as in Apache Kafka (BrokerSecurityConfigs.java)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from chaffinch.errors import ConfigException
from chaffinch.protocol.security_options import SASL_MECHANISMS, SASL_PROTOCOLS, SECURITY_PROTOCOLS, TLS_OPTIONS, TLS_PROTOCOLS
from chaffinch.settings import Option

SECURITY_OPTIONS: Final = (
    Option("security.protocol", "string", "PLAINTEXT", "Security protocol of all listeners.", choices=SECURITY_PROTOCOLS),
    Option(
        "sasl.enabled.mechanisms",
        "list",
        SASL_MECHANISMS,
        "SASL mechanisms for logins, if security.protocol requires one.",
        choices=SASL_MECHANISMS,
    ),
    Option(
        "connection.failed.authentication.delay.ms",
        "int",
        100,
        "Delay of the response to a failed login.",
        minimum=0,
        maximum=10_000,
    ),
    Option(
        "connections.max.reauth.ms",
        "int",
        0,
        "How long a login is valid: clients that support KIP-368 log in again before it ends; 0 for no limit.",
        minimum=0,
    ),
    Option(
        "connections.max.unauthenticated.ms",
        "int",
        10_000,
        "A connection whose TLS handshake and login take longer is closed.",
        minimum=1,
    ),
    Option(
        "sasl.server.max.receive.size",
        "int",
        524_288,
        "Largest request of a client that has not logged in.",
        minimum=1,
        maximum=2**31 - 1,
    ),
    Option(
        "ssl.client.auth",
        "string",
        "none",
        "Whether clients must send a certificate that ssl.truststore verifies.",
        choices=("none", "requested", "required"),
    ),
    *TLS_OPTIONS,
)

# Option name or prefix -> the security protocols that use it.
_COUNT_WITH: Final = {
    "ssl.": TLS_PROTOCOLS,
    "sasl.": SASL_PROTOCOLS,
    "connection.failed.authentication.delay.ms": SASL_PROTOCOLS,
    "connections.max.reauth.ms": SASL_PROTOCOLS,
    "connections.max.unauthenticated.ms": TLS_PROTOCOLS | SASL_PROTOCOLS,
}


def refuse_idle(settings: Mapping[str, Any]) -> None:
    """Raises ConfigException for options that the security protocol does not use: a given key or certificate must not be
    ignored silently.
    """
    protocol = settings["security.protocol"]
    for beginning, protocols in _COUNT_WITH.items():
        rows = [option for option in SECURITY_OPTIONS if option.name.startswith(beginning)]
        idle = [option.name for option in rows if settings[option.name] != option.default]
        if idle and protocol not in protocols:
            fitting = " or ".join(name for name in SECURITY_PROTOCOLS if name in protocols)
            raise ConfigException(
                f"option{'' if len(idle) == 1 else 's'} {', '.join(idle)} cannot be used with security.protocol={protocol}: "
                f"set it to {fitting} (--listener-security), or leave {'it' if len(idle) == 1 else 'them'} out"
            )
