"""The acts on priority classes."""

from collections.abc import Mapping

from bus.acts import Act, Requested, sent
from bus.vocabulary import Message
from features.preemption.messages import (
    EDIT_PRIORITY,
    PRIORITIES,
    FindPriorities,
    PriorityEdited,
    PriorityEditRequested,
)

ACTS = (Act("priority", "admin", "priority classes", sent(EDIT_PRIORITY)),)
REQUESTED: Mapping[type[Message], Requested] = {
    PriorityEditRequested: Requested(
        state=lambda message: (PRIORITIES, FindPriorities()), targets=("priority", "name")
    )
}
DONE = (PriorityEdited,)
