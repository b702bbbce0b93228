"""What Fetch is made of: sessions that remember partitions, reads of them, and waits until there is enough to read."""
