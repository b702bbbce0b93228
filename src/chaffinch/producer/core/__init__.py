"""The producer's state machines, without clock, socket, thread or random source. The entry point is `producer_core.ProducerCore`.

From the bottom up: `batches/` (accumulator and batches in flight), `refusals/` (interpretation of Produce responses, KIP-467, and the
errors of records), `transactions/` (KIP-98, KIP-1050); then the sender, the response handler and the completer, and `producer_core`.
"""
