"""Administration: topics, configurations, groups, transactions, and reading records, with any Kafka cluster.

Functions over a client of `options.connect`, with typed results, one module per subject; none of them prints. The commands
`chaffinch topics`, `groups`, `transactions` and `consume` call them. Names and meanings follow Kafka's Admin interface and command line
tools.

Apart from the exceptions in its documentation, every function raises the exception of an error code in a response (`chaffinch.errors`),
AuthenticationException, UnsupportedVersionException if a broker is too old, and TimeoutException after `default.api.timeout.ms` (15 s),
with the last error as its cause.
"""
