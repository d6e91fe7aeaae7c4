"""Simulates Ironic: its real state machine, its notifications and its REST API."""
