"""Delivery: serves workers' tables on any broker, at least once."""
