"""Declares the feature policies."""

from bus.feature import Feature

FEATURE = Feature(
    name="policies",
    says="tries other filters, weighers and limits on recorded requests",
    adds=(
        "messages",
        "scheduler",
        "with_preemption.scheduler",
        "with_preemption.tested_changes",
        "with_quotas.tested_changes",
        "with_reservations.scheduler",
        "with_reservations.tested_changes",
        "with_waiting.tested_changes",
    ),
    defines=("tested_changes",),
    needs=("what_if",),
    commands={"policy test": "commands"},
)
