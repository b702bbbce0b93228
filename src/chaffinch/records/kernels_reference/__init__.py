"""The loops of `kernels` in plain Python: what each of them does, said once more without regard to speed.

They are the oracle of the tests and serve small batches and processes that have not loaded the compiled ones. File by file
and function by function the same names, arguments, results and faults as in `kernels`.

Columns come as the buffers of `ByteColumn`; `valid` of length 0 means that nothing is null. The layout of a record, after its
length (KIP-98, Kafka's `DefaultRecord`; every number a zigzag varint but the attributes):

    attributes i8 | timestampDelta varlong | offsetDelta | keyLength, key | valueLength, value | headerCount, headers
    header: keyLength, key (UTF-8) | valueLength, value

A length of -1 is null; like Kafka, readers take any negative length of a key or value as null.
"""
