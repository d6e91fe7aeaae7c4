"""Capacity plans: the number of instances of a mix of flavors that would fit."""
