"""The verified part of a received AMQP message.

The broker's topic permissions judge the routing key of a published message, and nothing else. So a message
that came through <exchange> has that key, whatever it contains; its additional keys (the headers CC and
BCC), and the key under which a foreign queue dead-letters, are not verified and not accepted. Only a message
that was sent to a queue by name may state its key.

A user may also declare an exchange below its own names and bind <exchange> to it; keys published there are
not verified. So a message must have been published to one of berth's exchanges.
"""

from bus.rabbit.topology import BrokerNames
from bus.rabbit.wire import Arrived


def came_by(message: Arrived, names: BrokerNames, queue: str) -> tuple[str, bool, str]:
    """Return the key it arrived by, whether it may state another, and why it is refused, if so. `queue` is
    the broker's name of the queue.
    """
    forwarded = _dead_lettered_from(message.headers.get("x-death"))
    if message.exchange == names.queues:
        problem = ""
        if message.key.partition(".")[2] != queue:
            problem = f"it was sent to {message.key!r}, and is in {queue} by a further key (CC)"
        elif forwarded and not forwarded.startswith(f"{names.delay}."):
            problem = f"it came by way of the queue {forwarded}, which forwards what it likes"
        return names.key_for_reader(message.exchange, message.key), True, problem
    if message.exchange == "":  # which no user of berth's may write to
        return message.key, True, ""
    problem = f"it came by way of the queue {forwarded}, which forwards what it likes" if forwarded else ""
    if message.exchange != names.exchange:
        problem = f"it was published to the exchange {message.exchange}, not to {names.exchange}"
    return message.key, False, problem


def _dead_lettered_from(deaths: object) -> str:
    """Return the last queue that dead-lettered the message: the broker lists it first."""
    if deaths is None:
        return ""
    if isinstance(deaths, list) and deaths and isinstance(deaths[0], dict):
        return str(deaths[0].get("queue") or "?")
    return "?"
