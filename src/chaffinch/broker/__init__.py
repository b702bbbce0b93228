"""Kafka broker: one I/O-free core (`core/`) with two shells.

`server.py` runs it in a process of its own, `embedded.py` inside programs and tests.
"""
