"""What-if answers with the instances that a request would preempt."""
