"""Declares the feature groups."""

from bus.feature import Feature
from features.groups.settings import GroupSettings

FEATURE = Feature(
    name="groups", says="places instances of a server group together or apart", settings=GroupSettings
)
