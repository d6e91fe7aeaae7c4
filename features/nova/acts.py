"""The act of choosing hosts for instances that another system builds."""

from collections.abc import Mapping

from bus.acts import Act, Requested, as_named, ids_of, sent
from bus.vocabulary import Message
from features.nova.messages import SELECT_HOSTS, HostsAsked

ACTS = (
    Act(
        "choose hosts",
        "operator",
        "choose and claim hosts for instances that another system builds",
        sent(SELECT_HOSTS),
        limited_by=("cells",),
    ),
)
REQUESTED: Mapping[type[Message], Requested] = {
    HostsAsked: Requested(real=as_named, ids=lambda message: ids_of((message.request,)))
}
