"""Members of server groups that preempt instances."""
