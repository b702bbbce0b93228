"""The transactional producer: its states and moves, the requests of a transaction, and what refusals of them mean."""
