"""Programs that show Chaffinch at work."""
