"""Preemption inside a cell: builds replace instances of lower priority on their host."""
