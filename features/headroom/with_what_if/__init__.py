"""Failover headroom in the output of `berth what-if`."""
