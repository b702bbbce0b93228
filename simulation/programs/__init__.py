"""What users of producers do, and the processes that run it."""
