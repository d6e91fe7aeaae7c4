"""The bridge's decisions without I/O: translation of Nova's requests, and comparison of hosts."""
