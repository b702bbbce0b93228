"""`supervise`: queries started again when their errors allow it, and their counts for Prometheus."""
