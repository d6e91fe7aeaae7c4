"""Declares the feature preemption."""

from bus.decisions import OF_CLAIMS, ReasonTable
from bus.feature import Feature, PageEntry

FEATURE = Feature(
    name="preemption",
    says="builds of higher priority replace instances on their host",
    adds=(
        "messages",
        "placement",
        "scheduler",
        "conductor",
        "explaining",
        "pages",
        "with_groups.scheduler",
        "with_moves.scheduler",
        "with_moves.conductor",
    ),
    needs=("waiting",),
    commands={"policy priority": "commands"},
    command_groups={
        "policy priority": "Priority classes: requests that may preempt instances"
        " (features/preemption/README.md)."
    },
    pages={"/preemptions": PageEntry("Preemption", "Instances")},
    meters=(("features.preemption.rule", "placement"),),
    reasons=(
        ReasonTable(
            OF_CLAIMS,
            {
                "not_preemptible": "the instance to preempt has changed, or must not be preempted",
                "preemption_budget": "the project has preempted too many instances within one hour",
            },
        ),
    ),
)
