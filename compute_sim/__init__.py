"""Simulates agents and hosts with seeded faults, for demos, load tests and tests."""
