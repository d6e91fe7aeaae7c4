"""Decisions of the bridge to Nova, without I/O: translation of Nova's requests, and comparison of hosts."""
