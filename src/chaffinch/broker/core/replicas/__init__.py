"""Declared nodes and replicas: leaders, in-sync sets, and acknowledgement of writes (KIP-579)."""
