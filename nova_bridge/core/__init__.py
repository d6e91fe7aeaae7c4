"""Pure decisions of the bridge to Nova: translation of requests, and comparison of hosts."""
