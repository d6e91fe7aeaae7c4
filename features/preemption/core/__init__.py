"""The pure part of preemption."""
