"""The cores that the processes run, in one seeded world: brokers that crash, a lossy network, producers and queries, and checkers.

Every failure replays from its seed: `python -m chaffinch.simulation SEED --verbose`. The cores know nothing of this package.
"""
