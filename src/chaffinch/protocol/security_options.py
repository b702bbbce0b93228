"""Security options common to clients and brokers, named as in Apache Kafka (SslConfigs.java). Read by `runtime/tls.py`."""

from __future__ import annotations

from typing import Final

from chaffinch.settings import Option

SECURITY_PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
TLS_PROTOCOLS: Final = frozenset({"SSL", "SASL_SSL"})
SASL_PROTOCOLS: Final = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})
TLS_VERSIONS: Final = ("TLSv1.2", "TLSv1.3")
SASL_MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

TLS_OPTIONS: Final = (
    Option("ssl.truststore.location", "string", None, "PEM file with the trusted certificates"),
    Option("ssl.truststore.type", "string", "PEM", "format of that file; only PEM is supported"),
    Option("ssl.truststore.certificates", "string", None, "PEM text of the trusted certificates, instead of a file"),
    Option("ssl.keystore.location", "string", None, "PEM file with the private key and its certificates"),
    Option("ssl.keystore.type", "string", "PEM", "format of that file; only PEM is supported"),
    Option("ssl.keystore.key", "string", None, "PEM text of the private key, instead of a file"),
    Option("ssl.keystore.certificate.chain", "string", None, "PEM text of the certificates of ssl.keystore.key, its own first"),
    Option("ssl.key.password", "string", None, "password of an encrypted private key"),
    Option("ssl.enabled.protocols", "list", ("TLSv1.2", "TLSv1.3"), "allowed versions of TLS", choices=TLS_VERSIONS),
    Option(
        "ssl.cipher.suites", "list", None, "ciphers of TLSv1.2 that may be used, named as in OpenSSL; by default those with forward secrecy"
    ),
)

TLS_WITHOUT_EFFECT: Final = frozenset(
    {
        "security.providers",
        "ssl.keymanager.algorithm",
        "ssl.protocol",
        "ssl.provider",
        "ssl.secure.random.implementation",
        "ssl.trustmanager.algorithm",
    }
)
"""Options that only Java has."""
