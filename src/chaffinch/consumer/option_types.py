"""ConsumerOptions: types of options, for type checkers. Printed from the option table by `make docs`."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypedDict

from chaffinch.public_names import exported_from


@exported_from("chaffinch")
class ConsumerOptions(TypedDict, total=False):
    """Options of Consumer and AsyncConsumer as keywords (docs/reference/consumer.md). None means not given.

    The two deserializers are not in it: they are arguments with a type of their own, which decides the types of keys and values.

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
    metadata_max_age_ms: int | None
    metadata_recovery_strategy: Literal["rebootstrap", "none", "REBOOTSTRAP", "NONE"] | None
    metadata_recovery_rebootstrap_trigger_ms: int | None
    group_id: str | None
    group_instance_id: str | None
    group_protocol: str | None
    partition_assignment_strategy: (
        str
        | Sequence[
            Literal[
                "range",
                "roundrobin",
                "sticky",
                "cooperative-sticky",
                "org.apache.kafka.clients.consumer.RangeAssignor",
                "org.apache.kafka.clients.consumer.RoundRobinAssignor",
                "org.apache.kafka.clients.consumer.StickyAssignor",
                "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
            ]
        ]
        | None
    )
    session_timeout_ms: int | None
    heartbeat_interval_ms: int | None
    max_poll_interval_ms: int | None
    enable_auto_commit: bool | None
    auto_commit_interval_ms: int | None
    auto_offset_reset: str | None
    auto_offset_reset_new_partitions: str | None
    isolation_level: Literal["read_uncommitted", "read_committed"] | None
    fetch_min_bytes: int | None
    fetch_max_wait_ms: int | None
    fetch_max_bytes: int | None
    max_partition_fetch_bytes: int | None
    max_poll_records: int | None
    check_crcs: bool | None
    client_rack: str | None
    allow_auto_create_topics: bool | None
    exclude_internal_topics: bool | None
    default_api_timeout_ms: int | None
