"""Kafka producer: accepts records, sends them in batches, and reports each record's outcome exactly once.

Internal; may change without notice.

`core` decides and does no I/O; `sender_thread` and `producer` are the shell around it. Import names from `chaffinch`.
"""
