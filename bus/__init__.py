"""The bus: messages, queries and everything else that workers share. Workers never import one another.

Where to begin: `bus/README.md`.
"""
