"""Administration: topics, configurations, groups, transactions, and reading records, against any Kafka.

Plain functions over a `SyncClient` with typed results, one file per subject; nothing here prints. `chaffinch topics`, `groups`,
`transactions` and `consume` are thin layers over them. Names and meanings follow Kafka's Admin interface and command line tools.
"""
