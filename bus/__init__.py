"""The bus: messages, queries and other code that all workers share. Workers never import one another.

Where to begin: `bus/README.md`.
"""
