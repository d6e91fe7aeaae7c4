"""The act on rebalancing and on hosts that plans hold."""

from collections.abc import Mapping

from bus.acts import Act, Requested, sent
from bus.vocabulary import Message
from features.planning.messages import (
    GUARD_EXCHANGE,
    HOLD_HOSTS,
    SWITCH_BALANCING,
    GuardExchange,
    HoldHosts,
    SwitchBalancing,
)

ACTS = (
    Act(
        "rebalance",
        "operator",
        "stop or permit rebalancing, and hold hosts for a plan of moves",
        sent(SWITCH_BALANCING, HOLD_HOSTS, GUARD_EXCHANGE),
    ),
)
REQUESTED: Mapping[type[Message], Requested] = {
    SwitchBalancing: Requested(changes=lambda message: message.stop is not None or bool(message.begins)),
    HoldHosts: Requested(targets=("roots", "plan")),
    GuardExchange: Requested(targets=("exchange",)),
}
