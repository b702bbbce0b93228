"""Reference implementation of the loops in `kernels`, in plain Python without optimisation.

It is the oracle of the tests, and serves small batches and processes that have not loaded the compiled loops. Modules and functions have
the same names, arguments, results and faults as in `kernels`.

Columns are passed as the buffers of `ByteColumn`; `valid` of length 0 means no nulls. The layout of a record, after its length (KIP-98,
Kafka's `DefaultRecord`; every number is a zigzag varint except the attributes):

    attributes i8 | timestampDelta varlong | offsetDelta | keyLength, key | valueLength, value | headerCount, headers
    header: keyLength, key (UTF-8) | valueLength, value

A length of -1 is null; like Kafka, readers accept any negative length of a key or value as null.
"""
