"""Replay of dead letters: `chaffinch replay`.

Internal; may change without notice.
"""
