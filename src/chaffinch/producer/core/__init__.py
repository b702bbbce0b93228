"""The producer's state machines: no clock, socket, thread or dice. The way in is `producer_core.ProducerCore`.

From the bottom up: `batches/` (records become batches, and wait or are in flight), `refusals/` (what a Produce answer means for a batch,
KIP-467, and what callers are told), `transactions/` (KIP-98, KIP-1050); then who sends, settles and gives up, and `producer_core`.
"""
