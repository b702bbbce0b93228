"""What refusals mean: who in a batch is to blame, each record's own error, what callers are told."""
