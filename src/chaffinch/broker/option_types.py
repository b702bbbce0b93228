"""BrokerOptions: types of options, for type checkers. Printed from the option table by `make docs`."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Literal, TypedDict

from chaffinch.public_names import exported_from


@exported_from("chaffinch")
class BrokerOptions(TypedDict, total=False):
    """Options of EmbeddedBroker as keywords (docs/reference/broker.md).

    Options without an effect are not in it. Pass them in a mapping of options, as well as numbers that are text, for example from a file.
    """

    error_numbering: Literal["apache", "kip"]
    min_insync_replicas_policy: Literal["kip579", "legacy", "capped"]
    flush_policy: Literal["os", "always"]
    accept_data_loss: bool
    connections_max_unfinished_ms: int
    connections_max_unread_bytes: int
    connections_max_unread_ms: int
    socket_busy_poll_us: int
    socket_send_buffer_bytes: int
    max_decompressed_bytes: int
    auto_create_topics_enable: bool
    auto_leader_rebalance_enable: bool
    connections_max_idle_ms: int
    default_replication_factor: int
    delete_topic_enable: bool
    fetch_max_bytes: int
    log_cleaner_backoff_ms: int
    log_cleaner_dedupe_buffer_size: int
    log_cleaner_enable: bool
    log_cleaner_io_max_bytes_per_second: float
    log_retention_check_interval_ms: int
    log_retention_hours: int
    log_retention_minutes: int
    log_roll_hours: int
    log_roll_jitter_hours: int
    leader_imbalance_check_interval_seconds: int
    max_connections: int
    max_incremental_fetch_session_cache_slots: int
    num_partitions: int
    queued_max_request_bytes: int
    queued_max_response_bytes: int
    replica_lag_time_max_ms: int
    socket_request_max_bytes: int
    producer_id_expiration_check_interval_ms: int
    producer_id_expiration_ms: int
    transaction_max_timeout_ms: int
    transaction_partition_verification_enable: bool
    transaction_version: int
    transactional_id_expiration_ms: int
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
    sasl_enabled_mechanisms: str | Sequence[Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]]
    connection_failed_authentication_delay_ms: int
    connections_max_reauth_ms: int
    connections_max_unauthenticated_ms: int
    sasl_server_max_receive_size: int
    ssl_client_auth: Literal["none", "requested", "required"]
    ssl_truststore_location: str | PathLike[str]
    ssl_truststore_type: str
    ssl_truststore_certificates: str
    ssl_keystore_location: str | PathLike[str]
    ssl_keystore_type: str
    ssl_keystore_key: str
    ssl_keystore_certificate_chain: str
    ssl_key_password: str
    ssl_enabled_protocols: str | Sequence[Literal["TLSv1.2", "TLSv1.3"]]
    ssl_cipher_suites: str | Sequence[str]
    group_consumer_assignors: str | Sequence[Literal["uniform", "range"]]
    group_consumer_heartbeat_interval_ms: int
    group_consumer_max_heartbeat_interval_ms: int
    group_consumer_max_session_timeout_ms: int
    group_consumer_max_size: int
    group_consumer_min_heartbeat_interval_ms: int
    group_consumer_min_session_timeout_ms: int
    group_consumer_session_timeout_ms: int
    group_coordinator_rebalance_protocols: str | Sequence[Literal["classic", "consumer", "streams", "share"]]
    group_initial_rebalance_delay_ms: int
    group_max_session_timeout_ms: int
    group_max_size: int
    group_min_session_timeout_ms: int
    offset_metadata_max_bytes: int
    offsets_retention_check_interval_ms: int
    offsets_retention_minutes: int
    log_cleanup_policy: str | Sequence[Literal["compact", "delete"]]
    log_cleaner_delete_retention_ms: int
    log_segment_delete_delay_ms: int
    log_flush_interval_messages: int
    log_flush_interval_ms: int
    log_index_interval_bytes: int
    log_local_retention_bytes: int
    log_local_retention_ms: int
    log_cleaner_max_compaction_lag_ms: int
    message_max_bytes: int
    log_message_timestamp_after_max_ms: int
    log_message_timestamp_before_max_ms: int
    log_message_timestamp_type: Literal["CreateTime", "LogAppendTime"]
    log_cleaner_min_cleanable_ratio: float
    log_cleaner_min_compaction_lag_ms: int
    log_preallocate: bool
    log_retention_bytes: int
    log_retention_ms: int
    log_segment_bytes: int
    log_index_size_max_bytes: int
    log_roll_ms: int
    log_roll_jitter_ms: int
    compression_type: Literal["uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"]
    compression_gzip_level: int
    compression_lz4_level: int
    compression_zstd_level: int
    min_insync_replicas: int
    unclean_leader_election_enable: bool
