"""KafkaSinkOptions: types of options, for type checkers. Printed from the option table by `make docs`."""

from __future__ import annotations

from os import PathLike
from typing import Literal, TypedDict

from chaffinch.public_names import exported_from


@exported_from("chaffinch.spark")
class KafkaSinkOptions(TypedDict, total=False):
    """Options of KafkaSink as keywords (docs/reference/spark-sink.md). None means not given.

    Options without an effect are not in it. Pass them in a mapping of options, as well as numbers that are text, for example from a file.
    """

    kafka_bootstrap_servers: str | None
    kafka_client_id: str | None
    kafka_request_timeout_ms: int | None
    kafka_socket_connection_setup_timeout_ms: int | None
    kafka_socket_connection_setup_timeout_max_ms: int | None
    kafka_connections_max_idle_ms: int | None
    kafka_reconnect_backoff_ms: int | None
    kafka_reconnect_backoff_max_ms: int | None
    kafka_retry_backoff_ms: int | None
    kafka_retry_backoff_max_ms: int | None
    kafka_send_buffer_bytes: int | None
    kafka_receive_buffer_bytes: int | None
    kafka_security_protocol: (
        Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL", "plaintext", "ssl", "sasl_plaintext", "sasl_ssl"] | None
    )
    kafka_ssl_ca_location: str | PathLike[str] | None
    kafka_ssl_truststore_location: str | PathLike[str] | None
    kafka_ssl_truststore_type: str | None
    kafka_ssl_truststore_certificates: str | None
    kafka_ssl_keystore_location: str | PathLike[str] | None
    kafka_ssl_keystore_type: str | None
    kafka_ssl_keystore_key: str | None
    kafka_ssl_keystore_certificate_chain: str | None
    kafka_ssl_key_password: str | None
    kafka_ssl_enabled_protocols: str | None
    kafka_ssl_cipher_suites: str | None
    kafka_ssl_endpoint_identification_algorithm: Literal["https", ""] | None
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None
    kafka_sasl_username: str | None
    kafka_sasl_password: str | None
    kafka_sasl_jaas_config: str | None
    topic: str | None
    deliveryGuarantee: Literal["exactly-once", "at-least-once", "none"] | None
    stagingLocation: str | PathLike[str] | None
    errors_tolerance: Literal["none", "all"] | None
    errors_tolerance_max: str | int | None
    errors_dead_letter_queue_topic_name: str | None
    errors_dead_letter_path: str | PathLike[str] | None
    errors_column: str | None
    kafka_custom_exception_handler_class: str | None
    kafka_drop_invalid_large_records: bool | None
    kafka_retry_unknown_topic_partition_ms: int | None
    kafka_batch_size: int | None
    kafka_compression_type: Literal["none", "gzip", "snappy", "lz4", "zstd"] | None
    kafka_compression_gzip_level: int | None
    kafka_compression_lz4_level: int | None
    kafka_compression_zstd_level: int | None
    idempotencyToken: str | None
    onMissingMarker: Literal["fail", "write"] | None
    markerTopic: str | None
    kafka_max_request_size: int | None
    kafka_max_block_ms: int | None
    kafka_transactional_id: str | None
    kafka_transaction_timeout_ms: int | None
    kafka_acks: Literal["all", "-1", "0", -1, 0] | None
    kafka_enable_idempotence: bool | None
    kafka_metadata_max_age_ms: int | None
    kafka_metadata_recovery_strategy: Literal["rebootstrap", "none", "REBOOTSTRAP", "NONE"] | None
    kafka_metadata_recovery_rebootstrap_trigger_ms: int | None
    kafka_metadata_max_idle_ms: int | None
    kafka_retries: int | None
    kafka_delivery_timeout_ms: int | None
    kafka_max_in_flight_requests_per_connection: int | None
    kafka_linger_ms: int | None
    kafka_buffer_memory: int | None
    checkpointLocation: str | PathLike[str] | None
