"""Transactions as the broker keeps them: states and moves, the coordinator, epochs, who takes part, answers to what is wrong."""
