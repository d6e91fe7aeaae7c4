"""Server groups: policies that place instances on the same host or on different hosts."""
