"""The bus: all that workers share. They never import one another; what they say to each other is told here.

To read it for the first time:

1. `messages`: everything that is said, grouped by flow, out of the words in `vocabulary` and the values in
   `requests`, `reports` and `decisions`.
2. `topics`: where each message travels, and which questions can be asked. These and their answers are beside
   what they are about: `claims`, `resources`, `names`, `groups`, `aggregates`, `cells`, `clients`, `leases`;
   else in `queries`.
3. `worker`: how a worker says, as a table, what it hears, answers, asks and does again and again.
4. `errors`: what a handler may raise about its message.
5. `delivery.runner`: a process's way onto the bus. From there `delivery.serving` runs a worker's table,
   `delivery.settling` handles each message, and `delivery.verdicts` decides what becomes of one that failed.
6. `protocol`: envelopes, and what a broker must do. `codec` turns messages into bytes, `context` says what
   caused what, `clock` is the only way to time and chance.
7. Two brokers: `local`, within one process, and `rabbit`, RabbitMQ. `tests/contract/test_transport.py` holds
   both to the same words.
8. `sql`: the databases that workers keep what they know in. No message passes through it.
"""
