"""Simulates agents and hosts, with reproducible random faults, for demos, load tests and tests."""
