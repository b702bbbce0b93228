"""TLS: contexts from Kafka's options, and sockets that shake hands, send and receive without blocking.

Only PEM is read. What is wrong with files and options is a ConfigException that names them; a peer that is not accepted, or does not
accept us, is TlsRefused, and no use to try again.
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

# OpenSSL makes records of 16 KiB; so many bytes at once keep it busy, and only small buffers are joined.
SEND_BYTES: Final = 1 << 18
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_FORWARD_SECRET: Final = "ECDHE+AESGCM:ECDHE+CHACHA20:DHE+AESGCM:DHE+CHACHA20:ECDHE+AES:DHE+AES:!PSK:!SRP:!aDSS:!SHA1:!AESCCM"
"""Ciphers of TLS 1.2 whose sessions stay secret though the private key becomes known. Those of TLS 1.3 all do."""
_CLIENT_AUTH: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_JKS_MAGIC: Final = (b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce")
_DER_SEQUENCE: Final = b"\x30"
_CONVERT: Final = (
    "convert it with 'keytool -importkeystore -srckeystore FILE -destkeystore FILE.p12 -deststoretype PKCS12' (not needed for PKCS12) "
    "and 'openssl pkcs12 -in FILE.p12 -nodes -out FILE.pem', and say type PEM"
)


class TlsRefused(SocketFailed):
    """One of the two ends does not accept the other: certificates, host name, versions or ciphers. Trying again changes nothing."""

    is_refusal = True


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """One end's side of TLS. Files are read by `client_context` and `server_context`."""

    trust_location: str | None = None
    trust_option: str = "ssl.truststore.location"
    """Which option named it."""
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
        """From options that are parsed; those that only the other end has may be missing. ConfigException for what contradicts itself."""
        for store in ("ssl.truststore", "ssl.keystore"):
            kind = settings[f"{store}.type"]
            if kind != "PEM":
                raise ConfigException(f"option {store}.type cannot be {kind!r}: only PEM is read; {_CONVERT}")
        trust_options = [
            name for name in ("ssl.truststore.location", "ssl.ca.location", "ssl.truststore.certificates") if settings.get(name)
        ]
        if len(trust_options) > 1:
            raise ConfigException(f"options {' and '.join(trust_options)} are given, which say the same: give one of them")
        if settings["ssl.keystore.location"] and settings["ssl.keystore.key"]:
            raise ConfigException("options ssl.keystore.location and ssl.keystore.key are given, which say the same: give one of them")
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
    """Trusts what the system trusts unless certificates are given. ConfigException names what cannot be read."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host_name
    _configure(context, settings)
    if not _trust(context, settings):
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    return context


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """As `client_context`; a server needs a key, and certificates to trust if clients are to show theirs."""
    if not settings.key_location and not settings.key:
        raise ConfigException("a listener with TLS needs a key: give ssl.keystore.location, or ssl.keystore.key and its certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _configure(context, settings)
    if not _trust(context, settings) and settings.client_auth != "none":
        raise ConfigException(f"ssl.client.auth={settings.client_auth} needs to know whom to trust: give ssl.truststore.location")
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
        return key_password  # Without one OpenSSL would ask whoever sits at the terminal.

    try:
        context.load_cert_chain(path, password=password)
    except (ssl.SSLError, ValueError) as error:
        reason = _reason_text(error) if isinstance(error, ssl.SSLError) else str(error)
        hint = "; check ssl.key.password" if is_locked else ""
        raise ConfigException(f"option {what}: no private key with its certificate in PEM can be read there ({reason}){hint}") from None


def _trust(context: ssl.SSLContext, settings: TlsSettings) -> bool:
    """Whether certificates to trust are given; they are loaded then."""
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
        raise ConfigException(f"option {what}: no certificate in PEM can be read there") from None
    return True


def _check_pem(option: str, path: str) -> str:
    """The text of a file. ConfigException for one that cannot be read, and for a key store of Java's, which says how to convert it."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigException(f"option {option}: {path}: {error.strerror or error}") from None
    if data.startswith(_JKS_MAGIC) or data.startswith(_DER_SEQUENCE):
        kind = "a key store of Java's (JKS)" if data.startswith(_JKS_MAGIC) else "PKCS12 or DER"
        raise ConfigException(f"option {option}: {path} is {kind}, and only PEM is read; {_CONVERT}")
    return data.decode("ascii", errors="replace")


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """OpenSSL reads keys from files only: one in memory, so that no key is left on a disk."""
    number = os.memfd_create("key")
    try:
        with open(number, "wb", closefd=False) as file:
            file.write(text.encode())
        yield f"/proc/self/fd/{number}"
    finally:
        os.close(number)


# Sockets --------------------------------------------------------------------------------------------------------------------------


class ClientTls:
    """The client's end: makes sockets, and works on those it has made. ConfigException for files that cannot be read."""

    def __init__(self, settings: TlsSettings) -> None:
        self._context = client_context(settings)

    def wrap(self, sock: socket.socket, host: str) -> ssl.SSLSocket:
        """The client's end on a connected socket, which belongs to it from now on. Then call `continue_handshake`."""
        try:
            return self._context.wrap_socket(sock, server_hostname=host, do_handshake_on_connect=False)
        except (ValueError, OSError) as error:
            raise SocketFailed(f"TLS cannot begin: {error}") from error

    @staticmethod
    def continue_handshake(sock: ssl.SSLSocket) -> int:
        """Go on with the handshake: 0 when it is done, else the selector's event to wait for."""
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
                "closed by the broker during the TLS handshake: it may speak no TLS (security.protocol), or not accept us"
            ) from error
        except ssl.SSLError as error:
            raise TlsRefused(f"no TLS connection: {_reason_text(error)}") from error
        except OSError as error:
            raise SocketFailed(reason_of(error)) from error
        return 0

    @staticmethod
    def send_some(sock: ssl.SSLSocket, buffers: Sequence[memoryview]) -> int:
        """Write what fits now: the number of bytes, 0 when nothing fits. Then it must be called with the same bytes again, or more."""
        try:
            return sock.send(_first_bytes(buffers))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            raise _failure(error) from error

    @staticmethod
    def receive_some(sock: ssl.SSLSocket, buffer: memoryview) -> int | None:
        """Read what is there into `buffer`: the number of bytes, None when there is nothing now. A closed peer is SocketFailed."""
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
    """OpenSSL's reason, as words: TLSV13_ALERT_CERTIFICATE_REQUIRED."""
    return (error.reason or str(error)).replace("_", " ").lower()
