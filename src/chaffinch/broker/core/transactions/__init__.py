"""Transactions: coordinator, state machine, metadata, recovery after a power loss."""
