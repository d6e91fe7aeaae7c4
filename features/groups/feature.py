"""Declares the feature groups."""

from bus.feature import Feature

FEATURE = Feature(name="groups", says="places instances of a server group together or apart")
