"""Consumer core without I/O: subscriptions, positions, group membership, fetches and commits. Entry point: `consumer_core`."""
