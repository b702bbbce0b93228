"""TLS contexts from Kafka's options, and non-blocking TLS sockets.

Only PEM is read. Wrong files and options raise ConfigException, which names them. If one end does not accept the other, TlsRefused is
raised, and retrying does not help.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from chaffinch.errors import ConfigException
from chaffinch.runtime.sockets import SocketFailed, reason_of

# OpenSSL writes records of 16 KiB. This many bytes per call keep it busy, and only small buffers are joined.
SEND_BYTES: Final = 1 << 18
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_FORWARD_SECRET: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20:ECDHE+AES:DHE+AES:!PSK:!SRP:!aDSS:!SHA1:!AESCCM"
"""TLS 1.2 ciphers with forward secrecy. Those of TLS 1.3 all have it."""
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_JKS_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE: Final = b"\x30"
_CONVERT: Final = (
    "convert it with 'keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12' (not needed for PKCS12) "
    "and 'openssl pkcs12 -in FILE.p12 -nodes -out FILE.pem', and set the type to PEM"
)


class TlsRefused(SocketFailed):
    """One end does not accept the other: certificates, host name, versions or ciphers. Retrying does not help."""

    is_refusal = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """TLS settings of one end. `client_context` and `server_context` read the files."""

    trust_location: str | None = None
    trust_option: str = "ssl.truststore.location"
    """The option that set `trust_location`."""
    trust_certificates: str | None = None
    key_location: str | None = None
    key: str | None = field(default=None, repr=False)
    key_certificates: str | None = None
    key_password: str | None = field(default=None, repr=False)
    versions: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    ciphers: tuple[str, ...] | None = None
    checks_host_name: bool = True
    client_auth: str = "none"

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Self:
        """From parsed options; options of the other end may be missing. Raises ConfigException for contradictions."""
        for store in ("ssl.truststore", "ssl.keystore"):
            kind = settings[f"{store}.type"]
            if kind != "PEM":
                raise ConfigException(f"option {store}.type cannot be {kind!r}: only PEM is read; {_CONVERT}")
        trust_options = [
            name for name in ("ssl.truststore.location", "ssl.ca.location", "ssl.truststore.certificates") if settings.get(name)
        ]
        if len(trust_options) > 1:
            raise ConfigException(f"options {' and '.join(trust_options)} exclude each other: give one of them")
        if settings["ssl.keystore.location"] and settings["ssl.keystore.key"]:
            raise ConfigException("options ssl.keystore.location and ssl.keystore.key exclude each other: give one of them")
        if bool(settings["ssl.keystore.key"]) != bool(settings["ssl.keystore.certificate.chain"]):
            raise ConfigException("options ssl.keystore.key and ssl.keystore.certificate.chain belong together: give both or none")
        return cls(
            trust_location=settings["ssl.truststore.location"] or settings.get("ssl.ca.location"),
            trust_option="ssl.truststore.location" if settings["ssl.truststore.location"] else "ssl.ca.location",
            trust_certificates=settings["ssl.truststore.certificates"],
            key_location=settings["ssl.keystore.location"],
            key=settings["ssl.keystore.key"],
            key_certificates=settings["ssl.keystore.certificate.chain"],
            key_password=settings["ssl.key.password"],
            versions=settings["ssl.enabled.protocols"],
            ciphers=settings["ssl.cipher.suites"],
            checks_host_name=settings.get("ssl.endpoint.identification.algorithm") != "",
            client_auth=settings.get("ssl.client.auth", "none"),
        )


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Context of a client; uses the system's certificates unless others are given. ConfigException names what cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host_name
    _configure(context, settings)
    if not _trust(context, settings):
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Context of a server, which needs a key, and trusted certificates if clients authenticate with theirs."""
    if not settings.key_location and not settings.key:
        raise ConfigException("a listener with TLS needs a key: give ssl.keystore.location, or ssl.keystore.key and its certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _configure(context, settings)
    if not _trust(context, settings) and settings.client_auth != "none":
        raise ConfigException(f"ssl.client.auth={settings.client_auth} requires trusted certificates: set ssl.truststore.location")
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    return context


def _configure(context: ssl.SSLContext, settings: TlsSettings) -> None:
    wanted = sorted(_VERSIONS[name] for name in settings.versions)
    if not wanted:
        raise ConfigException("option ssl.enabled.protocols is empty: it must name at least one version")
    context.minimum_version, context.maximum_version = wanted[0], wanted[-1]
    if not settings.ciphers:
        context.set_ciphers(_FORWARD_SECRET)
    else:
        try:
            context.set_ciphers(":".join(settings.ciphers))
        except ssl.SSLError:
            raise ConfigException(f"option ssl.cipher.suites: OpenSSL knows none of {', '.join(settings.ciphers)}") from None
    if settings.key_location:
        text, what = _check_pem("ssl.keystore.location", settings.key_location), f"ssl.keystore.location {settings.key_location}"
    elif settings.key:
        text, what = f"{settings.key}\n{settings.key_certificates}\n", "ssl.keystore.key with ssl.keystore.certificate.chain"
    else:
        return
    with _as_file(text) as path:
        _load_key(context, path, settings.key_password or "", what, is_locked="ENCRYPTED" in text)


def _load_key(context: ssl.SSLContext, path: str, key_password: str, what: str, *, is_locked: bool) -> None:
    def password() -> str:
        return key_password  # Otherwise OpenSSL prompts on the terminal.

    try:
        context.load_cert_chain(path, password=password)
    except (ssl.SSLError, ValueError) as error:
        reason = _reason_text(error) if isinstance(error, ssl.SSLError) else str(error)
        hint = "; check ssl.key.password" if is_locked else ""
        raise ConfigException(f"option {what}: it contains no readable private key with its certificate in PEM ({reason}){hint}") from None


def _trust(context: ssl.SSLContext, settings: TlsSettings) -> bool:
    """Load the trusted certificates; False if none are given."""
    if settings.trust_location:
        text = _check_pem(settings.trust_option, settings.trust_location)
        what = f"{settings.trust_option} {settings.trust_location}"
    elif settings.trust_certificates:
        text, what = settings.trust_certificates, "ssl.truststore.certificates"
    else:
        return False
    try:
        context.load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise ConfigException(f"option {what}: it contains no readable certificate in PEM") from None
    return True


def _check_pem(option: str, path: str) -> str:
    """Read a PEM file. ConfigException for an unreadable file and for a Java key store, with instructions to convert it."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigException(f"option {option}: {path}: {error.strerror or error}") from None
    if data.startswith(_JKS_MAGIC) or data.startswith(_DER_SEQUENCE):
        kind = "a Java key store (JKS)" if data.startswith(_JKS_MAGIC) else "PKCS12 or DER"
        raise ConfigException(f"option {option}: {path} is {kind}, and only PEM is read; {_CONVERT}")
    return data.decode("ascii", errors="replace")


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """Path of an in-memory file: OpenSSL reads keys from files only, and no key may be left on a disk."""
    number = os.memfd_create("key")
    try:
        with open(number, "wb", closefd=False) as file:
            file.write(text.encode())
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


# Sockets --------------------------------------------------------------------------------------------------------------------------


class ClientTls:
    """TLS for a client: wraps sockets and works on them. ConfigException for files that cannot be read."""

    def __init__(self, settings: TlsSettings) -> None:
        self._context = client_context(settings)

    def wrap(self, sock: socket.socket, host: str) -> ssl.SSLSocket:
        """Wrap a connected socket, which the result then owns. Then call `continue_handshake`."""
        try:
            return self._context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        except (ValueError, OSError) as error:
            raise SocketFailed(f"TLS cannot begin: {error}") from error

    @staticmethod
    def continue_handshake(sock: ssl.SSLSocket) -> int:
        """Continue the handshake: 0 when it is complete, otherwise the selector event to wait for."""
        try:
            sock.do_handshake()
        except ssl.SSLWantReadError:
            return selectors.EVENT_READ
        except ssl.SSLWantWriteError:
            return selectors.EVENT_WRITE
        except ssl.SSLCertVerificationError as error:
            raise TlsRefused(f"its certificate is not accepted: {error.verify_message.rstrip('.')}") from error
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError) as error:
            raise SocketFailed(
                "closed by the broker during the TLS handshake: check security.protocol, or the broker does not accept this client"
            ) from error
        except ssl.SSLError as error:
            raise TlsRefused(f"no TLS connection: {_reason_text(error)}") from error
        except OSError as error:
            raise SocketFailed(reason_of(error)) from error
        return 0

    @staticmethod
    def send_some(sock: ssl.SSLSocket, buffers: Sequence[memoryview]) -> int:
        """Write as much as fits now; returns the number of bytes. After 0 it must be called with the same bytes again, or more."""
        try:
            return sock.send(_first_bytes(buffers))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise _failure(error) from error

    @staticmethod
    def receive_some(sock: ssl.SSLSocket, buffer: memoryview) -> int | None:
        """Read available bytes into `buffer`: the number of bytes, None if there are none now. A closed peer raises SocketFailed."""
        try:
            count = sock.recv_into(buffer)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return None
        except OSError as error:
            raise _failure(error) from error
        if count == 0:
            raise SocketFailed("closed by the broker")
        return count


def _first_bytes(buffers: Sequence[memoryview]) -> memoryview | bytes:
    if len(buffers) == 1 or len(buffers[0]) >= SEND_BYTES:
        return buffers[0][:SEND_BYTES]
    parts, size = [], 0
    for buffer in buffers:
        parts.append(buffer[: SEND_BYTES - size])
        size += len(parts[-1])
        if size == SEND_BYTES:
            break
    return b"".join(parts)


def _failure(error: OSError) -> SocketFailed:
    if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
        return SocketFailed("closed by the broker")
    return TlsRefused(f"no TLS connection: {_reason_text(error)}") if isinstance(error, ssl.SSLError) else SocketFailed(reason_of(error))


def _reason_text(error: ssl.SSLError) -> str:
    """OpenSSL's reason in lower case, such as `tlsv13 alert certificate required`."""
    return (error.reason or str(error)).replace("_", " ").lower()
