"""WriteTableOptions: types of options, for type checkers. Printed from the option table by `make docs`."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypedDict

from chaffinch.public_names import exported_from


@exported_from("chaffinch")
class WriteTableOptions(TypedDict, total=False):
    """Options of write_table as keywords (docs/reference/write-table.md). None means not given.

    Options without an effect are not in it. Pass them in a mapping of options, as well as numbers that are text, for example from a file.
    """

    bootstrap_servers: str | Sequence[str] | None
    client_id: str | None
    request_timeout_ms: int | None
    socket_connection_setup_timeout_ms: int | None
    socket_connection_setup_timeout_max_ms: int | None
    connections_max_idle_ms: int | None
    reconnect_backoff_ms: int | None
    reconnect_backoff_max_ms: int | None
    retry_backoff_ms: int | None
    retry_backoff_max_ms: int | None
    send_buffer_bytes: int | None
    receive_buffer_bytes: int | None
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] | None
    ssl_ca_location: str | PathLike[str] | None
    ssl_truststore_location: str | PathLike[str] | None
    ssl_truststore_type: str | None
    ssl_truststore_certificates: str | None
    ssl_keystore_location: str | PathLike[str] | None
    ssl_keystore_type: str | None
    ssl_keystore_key: str | None
    ssl_keystore_certificate_chain: str | None
    ssl_key_password: str | None
    ssl_enabled_protocols: str | Sequence[Literal["TLSv1.2", "TLSv1.3"]] | None
    ssl_cipher_suites: str | Sequence[str] | None
    ssl_endpoint_identification_algorithm: Literal["https", ""] | None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None
    sasl_username: str | None
    sasl_password: str | None
    sasl_jaas_config: str | None
    compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    compression_gzip_level: int | None
    compression_lz4_level: int | None
    compression_zstd_level: int | None
    batch_size: int | None
    max_block_ms: int | None
    max_request_size: int | None
    retry_unknown_topic_partition_ms: int | None
    transaction_timeout_ms: int | None
    transactional_id: str | None
    acks: Literal["all", "-1", -1] | None
    enable_idempotence: bool | None
