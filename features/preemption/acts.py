"""The acts on priority classes."""

from collections.abc import Mapping

from bus import topics
from bus.acts import Act, Requested, sent
from bus.preemption import FindPriorities, PriorityEdited, PriorityEditRequested
from bus.vocabulary import Message

ACTS = (Act("priority", "admin", "priority classes", sent(topics.EDIT_PRIORITY)),)
REQUESTED: Mapping[type[Message], Requested] = {
    PriorityEditRequested: Requested(
        state=lambda message: (topics.PRIORITIES, FindPriorities()), targets=("priority", "name")
    )
}
DONE = (PriorityEdited,)
