"""Declared nodes and replicas: who leads, who is in sync, when a write is acknowledged (KIP-579)."""
