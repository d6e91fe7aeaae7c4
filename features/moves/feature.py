"""Declares the feature moves."""

from bus.feature import Feature

FEATURE = Feature(name="moves", says="moves, resizes, shelves and evacuates instances")
