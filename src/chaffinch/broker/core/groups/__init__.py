"""Consumer groups: classic and consumer (KIP-848) protocol, committed offsets, partition assignment."""
