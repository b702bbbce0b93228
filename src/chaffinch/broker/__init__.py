"""A broker that speaks the Kafka protocol: one I/O-free core (`core/`) under two skins.

`server.py` is for processes, `embedded.py` for programs and tests.
"""
