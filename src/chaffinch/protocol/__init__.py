"""The Kafka wire protocol without I/O: message descriptions, frames, and the two ends of a connection.

Internal; may change without notice.

Bytes go in and messages come out, or the other way round; sockets, clocks and threads belong to the callers.
"""
