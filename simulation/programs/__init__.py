"""Programs of producer users, and the processes that run them."""
