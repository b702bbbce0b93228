"""Records that wait, and batches on their way: columns that grow, batches in flight, the queue of each partition."""
