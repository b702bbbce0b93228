"""Dead letters back to their topics: `chaffinch replay`."""
