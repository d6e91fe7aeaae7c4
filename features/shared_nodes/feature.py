"""Declares the feature shared_nodes."""

from bus.feature import Feature

FEATURE = Feature(
    name="shared_nodes",
    says="several agents of a cell deploy instances on the same Ironic nodes",
    adds=("messages", "conductor", "metal"),
    commands={
        "Hosts": {
            "agent list": "commands",
            "agent disable": "commands",
            "agent enable": "commands",
            "agent rehome": "commands",
        }
    },
)
