"""TLS certificates for tests, generated for each run: a root, a valid server, servers with one fault each, a client, and another root."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, load_pem_private_key

PASSWORD = "key's own"


class Certificates:
    """Paths of PEM files in a folder. The files of servers and clients contain both the key and the chain."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = trustme.CA()
        self._other = trustme.CA()
        self.root = self._put("root", self._root.cert_pem.bytes())
        self.other_root = self._put("other-root", self._other.cert_pem.bytes())
        self.server = self._leaf("server", self._root.issue_cert("127.0.0.1", "localhost"))
        self.elsewhere = self._leaf("elsewhere", self._root.issue_cert("kafka.example.org"))
        self.expired = self._leaf("expired", self._root.issue_cert("127.0.0.1", not_after=datetime(2020, 1, 1, tzinfo=UTC)))
        self.client = self._leaf("client", self._root.issue_cert("alice@example.org"))
        self.strange_client = self._leaf("strange-client", self._other.issue_cert("mallory@example.org"))
        self.locked_client = self._locked(self._root.issue_cert("alice@example.org"))

    def rsa_server(self) -> str:
        """Path of a server certificate with an RSA key. The other keys are on elliptic curves."""
        return self._leaf("rsa-server", self._root.issue_cert("127.0.0.1", key_type=trustme.KeyType.RSA))

    def _put(self, name: str, data: bytes) -> str:
        path = self._folder / f"{name}.pem"
        path.write_bytes(data)
        return str(path)

    def _leaf(self, name: str, leaf: trustme.LeafCert) -> str:
        return self._put(name, leaf.private_key_and_cert_chain_pem.bytes())

    def _locked(self, leaf: trustme.LeafCert) -> str:
        """Path of a certificate with an encrypted key, in the PEM form that Kafka documents."""
        key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(PASSWORD.encode()))
        return self._put("locked-client", data + b"".join(pem.bytes() for pem in leaf.cert_chain_pems))
