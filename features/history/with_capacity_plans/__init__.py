"""Capacity plans on the hosts of a past time."""
