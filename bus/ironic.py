"""Messages about the nodes of an Ironic that berth follows."""

from typing import Annotated

from msgspec import Meta

from bus.vocabulary import Id, Message, Number, ShortList, Text, Word, Zone

MOST_REPORTED = 1000
UNKNOWN_TIME = 1.0  # `at` of a state without a time, in 1970: every event of Ironic replaces this state


class IronicSpoke(Message, frozen=True, kw_only=True):
    """A hint that Ironic nodes changed, so that open web pages refresh; it may arrive twice or not at all."""

    nodes: Annotated[tuple[Id, ...], Meta(max_length=MOST_REPORTED)] = ()  # empty: too many to list


class NodeChanged(Message, frozen=True, kw_only=True):
    """A state change of an Ironic node, published by a tool or the simulator. Of several such messages about
    a node, the one with the latest time counts."""

    event: Word
    node: Id
    at: Number  # seconds since the epoch
    name: Text = ""
    cell: Word
    agent: Word
    resource_class: Text | None
    provision_state: Text | None
    power_state: Text | None = "power off"
    maintenance: bool = False
    instance_uuid: Text | None = None
    traits: ShortList[Text] = ()
    zone: Zone = ""
    deleted: bool = False
