"""How an AMQP message came, and what a reader may believe of it.

The broker's topic permissions judge the routing key of what is published, and nothing else. So a message
that came by way of <exchange> has that for its key, whatever is written in it; its further keys (the headers
CC and BCC), and the key that a queue of somebody's own dead-letters under, are judged by nobody and are not
believed. Only what was sent to a queue by its name says its key itself.

A user may also declare an exchange below its own names and bind <exchange> to it; keys published there are
judged by nobody. So a message must have been published to one of berth's exchanges.
"""

from bus.rabbit.topology import BrokerNames
from bus.rabbit.wire import Arrived


def came_by(message: Arrived, names: BrokerNames, queue: str) -> tuple[str, bool, str]:
    """The key it came by, whether it may name another, and why it is not to be believed at all, if so.

    `queue` is the broker's name of the one that was read.
    """
    forwarded = _dead_lettered_from(message.headers.get("x-death"))
    if message.exchange == names.queues:
        problem = ""
        if message.key.partition(".")[2] != queue:
            problem = f"it was sent to {message.key!r}, and is in {queue} by a further key (CC)"
        elif forwarded and not forwarded.startswith(f"{names.delay}."):
            problem = f"it came by way of the queue {forwarded}, which forwards what it likes"
        return names.heard_as(message.exchange, message.key), True, problem
    if message.exchange == "":  # which no user of berth's may write to
        return message.key, True, ""
    problem = f"it came by way of the queue {forwarded}, which forwards what it likes" if forwarded else ""
    if message.exchange != names.exchange:
        problem = f"it was published to the exchange {message.exchange}, not to {names.exchange}"
    return message.key, False, problem


def _dead_lettered_from(deaths: object) -> str:
    """The last queue that passed it on as a dead letter: the broker puts it first."""
    if deaths is None:
        return ""
    if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict):
        return str(deaths[0].get("queue") or "?")
    return "?"
