"""Clocks, sockets, TLS and the event loop for the shells. Besides them, this is the only package with real time and network.

Internal; may change without notice.
"""
