"""Declares the feature topology."""

from bus.decisions import OF_HOSTS, ReasonTable
from bus.feature import Feature

FEATURE = Feature(
    name="topology",
    says="chooses the hosts of all instances of a request together, by levels of failure domains",
    needs=("groups",),
    meters=(("features.topology.refusals", "scheduler"),),
    reasons=(
        ReasonTable(
            OF_HOSTS,
            {
                "topology": "the domain of the host (rack, row, ...) breaks a constraint, or cannot take all"
                " instances"
            },
            counted={"topology": ""},
        ),
    ),
)
