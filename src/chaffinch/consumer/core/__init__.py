"""The consumer without I/O: subscriptions and positions, the group's membership, fetching, commits; tied together by `consumer_core`."""
