"""Record batches: the accumulator of unsent records, batches in flight, and the send queue of each partition."""
