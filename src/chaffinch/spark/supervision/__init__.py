"""Supervision of queries: restarts after errors (`supervise`), and metrics for Prometheus.

Internal; may change without notice.
"""
