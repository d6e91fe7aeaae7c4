"""Declares the feature groups."""

from bus.decisions import OF_HOSTS, OF_THE_WHOLE, ReasonTable
from bus.feature import Feature
from features.groups.settings import GroupSettings

FEATURE = Feature(
    name="groups",
    says="places instances of a server group together or apart, by hosts or by failure domains",
    adds=("messages", "placement", "scheduler", "filters", "audit", "boot_options", "with_moves.scheduler"),
    settings=GroupSettings,
    commands={"instance group": "commands"},
    command_groups={
        "instance group": "Server groups: instances to keep on one host, or on different hosts. `berth boot"
        " --group`"
        " joins one."
    },
    reasons=(
        ReasonTable(
            OF_HOSTS,
            {
                "server_group": "the policy of the server group forbids the host",
                "topology": "the domain of the host (rack, row, ...) breaks a constraint, or cannot take all"
                " instances",
            },
            counted={"server_group": "ruled out by the server group", "topology": ""},
        ),
        ReasonTable(OF_THE_WHOLE, {"no_server_group": "the server group does not exist in this project"}),
    ),
)
