"""SCRAM: the example of RFC 7677, invalid messages, and both ends against each other."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaffinch.protocol import scram
from chaffinch.protocol.scram import ClientFinal, ClientFirst, Credential, ScramError, ScramMechanism, ServerFirst

# RFC 7677, section 3: user "user", password "pencil".
CLIENT_NONCE = "rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="
SHA_256 = ScramMechanism.SCRAM_SHA_256


def test_the_example_of_rfc_7677() -> None:
    first_bare = scram.client_first_bare("user", CLIENT_NONCE)
    assert ClientFirst.parse(f"{scram.GS2_HEADER}{first_bare}".encode()) == ClientFirst("user", CLIENT_NONCE, first_bare, "n,,")
    first = ServerFirst.parse(SERVER_FIRST)
    assert str(first).encode() == SERVER_FIRST
    salted = scram.salted_password(SHA_256, "pencil", first.salt, first.iterations)
    without_proof = scram.client_final_without_proof(first.nonce)
    message = scram.auth_message(first_bare, SERVER_FIRST.decode(), without_proof)
    assert scram.with_proof(without_proof, scram.client_proof(SHA_256, salted, message)) == CLIENT_FINAL
    final = ClientFinal.parse(CLIENT_FINAL)
    assert (final.channel_binding, final.nonce, final.without_proof) == (b"n,,", first.nonce, without_proof)
    credential = Credential.of_salted(SHA_256, first.salt, first.iterations, salted)
    assert scram.is_valid_proof(credential, final.proof, message)
    assert scram.server_final(scram.server_signature(SHA_256, credential.server_key, message)) == SERVER_FINAL
    assert scram.parse_server_final(SERVER_FINAL) == scram.server_signature(SHA_256, scram.server_key_of(SHA_256, salted), message)


@pytest.mark.parametrize("mechanism", ScramMechanism, ids=lambda mechanism: mechanism.title)
def test_proof_for_another_message_or_password_is_invalid(mechanism: ScramMechanism) -> None:
    salted = scram.salted_password(mechanism, "secret", b"salt", scram.ITERATIONS_MIN)
    credential = Credential.of_salted(mechanism, b"salt", scram.ITERATIONS_MIN, salted)
    proof = scram.client_proof(mechanism, salted, b"message")
    assert scram.is_valid_proof(credential, proof, b"message")
    assert not scram.is_valid_proof(credential, proof, b"another")
    assert not scram.is_valid_proof(credential, proof[:-1], b"message")
    other = scram.salted_password(mechanism, "Secret", b"salt", scram.ITERATIONS_MIN)
    assert not scram.is_valid_proof(credential, scram.client_proof(mechanism, other, b"message"), b"message")


@pytest.mark.parametrize(
    ("parse", "token", "text"),
    [
        (ClientFirst.parse, b"p=tls-unique,,n=user,r=abc", "channel binding"),
        (ClientFirst.parse, b"n,a=admin,n=user,r=abc", "another identity"),
        (ClientFirst.parse, b"hello", "not a SCRAM message"),
        (ClientFirst.parse, b"", "not a SCRAM message"),
        (ClientFirst.parse, b"n,,r=abc,n=user", "instead of"),
        (ClientFirst.parse, b"n,,n=user", "instead of"),
        (ClientFirst.parse, b"n,,m=x,n=user,r=abc", "extension"),
        (ClientFirst.parse, b"n,,n=us=er,r=abc", "not a SCRAM user name"),
        (ClientFirst.parse, b"n,,n=,r=abc", "not a SCRAM user name"),
        (ClientFirst.parse, b"n,,n=user,r=", "nonce"),
        (ClientFirst.parse, b"n,,n=user,r=a b", "nonce"),
        (ClientFirst.parse, b"n,,n=\xff,r=abc", "UTF-8"),
        (ServerFirst.parse, b"r=abc,s=!,i=4096", "base64"),
        (ServerFirst.parse, b"r=abc,s=,i=4096", "salt of 0 bytes"),
        (ServerFirst.parse, b"r=abc,s=YQ==,i=-1", "iterations"),
        (ServerFirst.parse, b"r=abc,s=YQ==,i=99999999999", "iterations"),
        (ServerFirst.parse, b"r=abc,s=YQ==", "instead of"),
        (ClientFinal.parse, b"c=biws,r=abc", "instead of"),
        (ClientFinal.parse, b"c=biws,r=abc,p=?", "base64"),
        (scram.parse_server_final, b"e=invalid-proof", "invalid-proof"),
        (scram.parse_server_final, b"x=1", "instead of"),
    ],
)
def test_invalid_message_is_refused(parse: Any, token: bytes, text: str) -> None:
    with pytest.raises(ScramError, match=text):
        parse(token)


def test_trailing_extensions_are_ignored() -> None:
    assert ServerFirst.parse(b"r=abc,s=YQ==,i=4096,x=y").iterations == 4096
    assert ClientFinal.parse(b"c=biws,r=abc,x=y,p=YQ==").without_proof == "c=biws,r=abc,x=y"


@given(st.text(min_size=1))
def test_user_names_round_trip(name: str) -> None:
    assert ClientFirst.parse(f"n,,{scram.client_first_bare(name, 'abc')}".encode()).user == name
    assert scram.unescaped(scram.escaped(name)) == name


@given(st.binary())
def test_any_bytes_parse_or_raise_scram_error(token: bytes) -> None:
    for parse in (ClientFirst.parse, ServerFirst.parse, ClientFinal.parse, scram.parse_server_final):
        try:
            parse(token)
        except ScramError:
            continue


def test_numbers_are_those_of_kip_554() -> None:
    assert {mechanism.value: mechanism.title for mechanism in ScramMechanism} == {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
    assert base64.b64decode(scram.CHANNEL_BINDING) == b"n,,"
