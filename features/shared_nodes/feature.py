"""Declares the feature shared_nodes."""

from bus.feature import Feature

FEATURE = Feature(
    name="shared_nodes",
    says="several agents of a cell deploy instances on the same Ironic nodes",
    adds=("messages", "conductor", "metal"),
    commands={
        "cell agent list": "commands",
        "cell agent disable": "commands",
        "cell agent enable": "commands",
        "cell agent rehome": "commands",
    },
)
