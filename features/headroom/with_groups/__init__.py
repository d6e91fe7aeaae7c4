"""Server groups in failover headroom."""
