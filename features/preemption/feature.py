"""Declares the feature preemption."""

from bus.feature import Feature

FEATURE = Feature(
    name="preemption",
    says="builds of higher priority replace instances on their host",
    needs=("moves",),
    meters=(("features.preemption.build_metrics", "conductor"),),
)
