"""The bus: messages, queries and everything else that workers share. Workers never import one another.

Where to begin:

1. `messages`: the published messages, made of the types in `vocabulary` and the values in `requests`,
`reports` and `decisions`.

2. `topics`: the topic of each message, and all queries. The messages of queries are in the module of their
subject (`claims`, `resources`, `names`, `groups`, `aggregates`, `cells`, `clients`, `leases`), otherwise in
`queries`.

3. `worker`: the table in which a worker declares what it consumes, answers, asks and does periodically.

4. `errors`: the exceptions by which a handler decides what happens to its message.

5. `delivery.runner`: the connection of a process to the bus. `delivery.serving` runs a worker's table,
`delivery.settling` handles each message, `delivery.verdicts` decides about failed ones.

6. `protocol`: envelopes, and the interface of a broker. `codec` encodes messages, `context` records which
message caused which, `clock` provides time and randomness.

7. Two brokers: `local`, within one process, and `rabbit`, RabbitMQ. `tests/contract/test_transport.py` tests
both.

8. `sql`: the workers' databases.
"""
