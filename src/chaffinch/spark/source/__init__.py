"""The source, of batches and of streams: which offsets are read, how they are fetched, and the rows they become."""
