"""The act on agents that share nodes."""

from collections.abc import Mapping

from bus.acts import Act, Requested, as_named, sent
from bus.vocabulary import Message
from features.shared_nodes.messages import EDIT_SHARING, FIND_AGENTS, FindAgents, SharingEditRequested

ACTS = (
    Act("share nodes", "operator", "disable or enable an agent of shared nodes, or move its nodes",
        sent(EDIT_SHARING), limited_by=("cells",)),
)  # fmt: skip
REQUESTED: Mapping[type[Message], Requested] = {
    SharingEditRequested: Requested(
        state=lambda message: (FIND_AGENTS, FindAgents(cell=message.cell)), real=as_named
    )
}
