"""Simulates Ironic: the states of nodes, the requests of its REST API that berth makes, and notifications."""
