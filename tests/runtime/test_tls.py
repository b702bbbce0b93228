"""The ciphers of TLS 1.2, at both ends: those with forward secrecy, unless others are named."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import pytest

from chaffinch.runtime.tls import TlsSettings, client_context, server_context
from tests.support.certificates import Certificates

FORWARD_SECRET = {"kx-ecdhe", "kx-dhe", "kx-any"}
"""`kx-any`: TLS 1.3."""
RSA_ONLY = "AES256-GCM-SHA384"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


def contexts(certificates: Certificates, **more: object) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    client = client_context(TlsSettings(trust_location=str(certificates.root), checks_host_name=False, **more))  # type: ignore[arg-type]
    return client, server_context(TlsSettings(key_location=certificates.rsa_server(), **more))  # type: ignore[arg-type]


def shake_hands(client_side: ssl.SSLContext, server_side: ssl.SSLContext) -> str:
    """The cipher that both ends agree on. Raises SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client, server = client_side.wrap_bio(down, up), server_side.wrap_bio(up, down, server_side=True)
    for _ in range(4):
        for end in (client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    cipher = client.cipher()
    assert cipher is not None
    return cipher[0]


def test_default_ciphers_all_have_forward_secrecy(certificates: Certificates) -> None:
    for context in contexts(certificates):
        assert {cipher["kea"] for cipher in context.get_ciphers()} <= FORWARD_SECRET


def test_named_ciphers_replace_the_default(certificates: Certificates) -> None:
    for context in contexts(certificates, ciphers=(RSA_ONLY,)):
        assert RSA_ONLY in [cipher["name"] for cipher in context.get_ciphers()]


def test_tls_1_2_handshake_with_defaults_succeeds(certificates: Certificates) -> None:
    assert shake_hands(*contexts(certificates, versions=("TLSv1.2",))).startswith("ECDHE-")


@pytest.mark.parametrize(
    "named_by", [lambda named, default: (named[0], default[1]), lambda named, default: (default[0], named[1])], ids=["client", "broker"]
)
def test_handshake_without_shared_cipher_is_refused(
    certificates: Certificates, named_by: Callable[..., tuple[ssl.SSLContext, ssl.SSLContext]]
) -> None:
    named, default = contexts(certificates, versions=("TLSv1.2",), ciphers=(RSA_ONLY,)), contexts(certificates, versions=("TLSv1.2",))
    with pytest.raises(ssl.SSLError, match=r"(?i)no.shared.cipher|handshake.failure"):
        shake_hands(*named_by(named, default))


def test_handshake_with_cipher_named_by_both_succeeds(certificates: Certificates) -> None:
    assert shake_hands(*contexts(certificates, versions=("TLSv1.2",), ciphers=(RSA_ONLY,))) == RSA_ONLY
