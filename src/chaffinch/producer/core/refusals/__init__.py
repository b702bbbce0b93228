"""Refused batches: culprits (KIP-467), the error of each record, and the causes of waits."""
