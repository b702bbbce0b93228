"""Replay of dead letters: `chaffinch replay`."""
