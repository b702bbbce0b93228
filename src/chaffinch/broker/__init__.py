"""Kafka broker: one I/O-free core (`core/`) and the shell around it, in one thread with one event loop.

Internal; may change without notice.

`server.py` runs it in a process of its own, `embedded.py` inside programs and tests. Only these files of the shell own sockets:
`listeners.py` (one listening socket per declared node), `connections.py` (one socket per client; `file_sender.py` sends file ranges
past its transport) and `http_listener.py` (metrics and control). Files are reached through `storage.file_system` only.
"""
