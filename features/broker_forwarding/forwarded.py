"""Converts a message that was read from a queue of one broker to a message for the same queue of another
broker.

Workers read the routing key and the exchange of a message, because RabbitMQ's permissions verify both. So a
message for a worker's queue is published as if a worker requeued it: to the exchange <exchange>.queues, with
the original key in the message. A message for any other queue (of clients, delays) is published unchanged,
with its routing key, to a fan-out exchange that is bound to that queue only.
"""

import copy

from bus.protocol import encode_frame
from bus.rabbit.amqp_messages import open_message, properties_of, properties_of_frame, routing_of
from bus.rabbit.fast_channels.frames import PERSISTENT, Arrived, Post, Properties
from bus.rabbit.topology import BrokerNames

# Headers of the old broker that are removed: a forwarder's lost connections also increase these counts.
_OF_THE_BROKER = ("x-delivery-count", "x-acquired-count")


def fan_out_name(names: BrokerNames, queue: str) -> str:
    """Return the name of the exchange through which messages reach this queue with unchanged routing keys."""
    return f"{names.exchange}.forward.{queue}"


def post_to_worker(message: Arrived, names: BrokerNames, queue: str, user: str | None) -> Post | None:
    """Return the message for a worker's queue, or for the dead-letter queue; None if workers would refuse the
    message, or if the queue is not a worker's.
    """
    if message.exchange == names.dead and queue == names.dead:
        return _unchanged(message, names.dead, user)
    key, names_key, problem = routing_of(message, names, queue)
    envelopes, problem = open_message(message, key, names_key=names_key, problem=problem)
    if problem:
        return None
    if len(envelopes) == 1:
        body = bytes(envelopes[0].body)
        properties = properties_of(envelopes[0], names.plain(queue), user)
    else:
        body = encode_frame(envelopes)
        properties = properties_of_frame(str(message.id or ""), user)
    return Post(names.queues, f"0.{queue}", body, properties, mandatory=True)


def post_unchanged(message: Arrived, names: BrokerNames, queue: str, user: str | None) -> Post:
    """Return the message for any queue, with unchanged routing key and properties, to publish to a fan-out
    exchange. A worker refuses such a message, because workers do not use that exchange.
    """
    return _unchanged(message, fan_out_name(names, queue), user)


def _unchanged(message: Arrived, exchange: str, user: str | None) -> Post:
    properties = Properties() if message.properties is None else copy.copy(message.properties)
    properties.headers = {k: v for k, v in message.headers.items() if k not in _OF_THE_BROKER} or None
    properties.delivery_mode = PERSISTENT
    # RabbitMQ refuses messages with the name of another user than the publishing one.
    properties.user_id = user if properties.user_id else None
    return Post(exchange, message.key, message.body, properties, mandatory=True)
