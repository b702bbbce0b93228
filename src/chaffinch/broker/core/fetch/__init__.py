"""Fetch: sessions, partition reads, and delayed fetches."""
