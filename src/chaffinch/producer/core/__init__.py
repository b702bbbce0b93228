"""The producer's state machines: no clock, socket, thread or dice. The way in is `producer_core.ProducerCore`.

From the bottom up: `batches` (a batch and who waits for it), `accumulator` (records become batches), `in_flight` (sequences of one
partition), `culprits` (what a Produce answer means for a batch, KIP-467), `transaction` (KIP-98, KIP-1050), `producer_core`.
"""
