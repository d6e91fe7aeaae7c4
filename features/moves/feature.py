"""Declares the feature moves."""

from bus.feature import Feature

FEATURE = Feature(
    name="moves",
    says="migrates, resizes, evacuates, shelves and rebuilds instances, also between cells",
    meters=(("features.moves.cell_store", "conductor"),),
)
