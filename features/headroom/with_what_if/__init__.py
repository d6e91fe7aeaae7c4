"""Failover headroom in the output of `berth request what-if`."""
