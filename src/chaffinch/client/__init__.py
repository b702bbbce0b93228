"""Client code shared by producer, consumer, administration and Spark: metadata, coordinators, retries, connections.

Internal; may change without notice.

Everything here is free of I/O except `network.py`, which owns the sockets, and its two drivers, `client_thread.py` and `sync_client.py`.
"""
