"""Declares the feature reservations."""

from bus.feature import Feature

FEATURE = Feature(name="reservations", says="holds capacity for a project or a purpose")
