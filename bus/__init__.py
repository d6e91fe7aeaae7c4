"""What all workers share: messages, queries, the connection to the broker. Workers never import one another.

Where to begin: `bus/README.md`.
"""
