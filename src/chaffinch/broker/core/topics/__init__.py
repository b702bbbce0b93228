"""Topics: registry, naming rules, and options with their validation."""
