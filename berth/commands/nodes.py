"""`berth ironic publish`: publishes the state of a bare-metal node in Ironic's place, for tests without
Ironic.
"""

import uuid
from dataclasses import dataclass
from typing import Annotated, Any

from berth import worker_roles
from berth.kit.cells import chosen_cells
from berth.kit.command_groups import Commands
from berth.kit.options import option, positional
from berth.kit.publishing import checked, publish
from berth.kit.terminal import Cli
from berth.settings import Settings
from bus import topics
from bus.clock import Clock
from bus.ironic import NodeChanged
from ironic_sync.core.rule import class_text

commands = Commands()


@dataclass(frozen=True)
class NodeOptions:
    event: str = option("update", "The event's name: maintenance_set, provision_set, ...")
    provision_state: str = option("available", "available, cleaning, active, ...")
    power_state: str = option("power off", "power off, power on, error.")
    maintenance: bool = option(False, "Put it in maintenance.")
    resource_class: str = option("baremetal", "Its resource class: baremetal is CUSTOM_BAREMETAL.")
    cell: str = option("c1", "The cell whose first agent builds on it.")
    trait: list[str] | None = option(None, "CUSTOM_...; may be repeated.", metavar="NAME")
    deleted: bool = option(False, "The node was deleted in Ironic.")


@commands.command("publish")
async def publish_command(
    cli: Cli,
    name: Annotated[str, positional("A name; its uuid is derived from it unless it is one.")],
    options: NodeOptions,
) -> None:
    """Publish a bare-metal node's state in Ironic's format, with the routing key ironic.node.CELL.EVENT."""
    state = vars(options) | {"traits": tuple(options.trait or ())}
    del state["trait"]
    async with cli.bus("client") as bus:
        await chosen_cells(bus, cli.settings, [options.cell])
        event = checked(node_event(cli.settings, name, **state))
        await publish(bus, event)
    key = topics.TOPIC_OF[type(event)].key(event)
    says = f"published on {key}\nnode {event.name} ({event.node}), resource class"
    class_ = class_text(options.resource_class)
    cli.tell(f"{says} {class_}", node=event.node, name=event.name, key=key)


def node_event(settings: Settings, name: str, cell: str, **state: Any) -> NodeChanged:
    """Return a message that reports the state of a bare-metal node of a cell; by default the node is free."""
    try:
        node = str(uuid.UUID(name))
    except ValueError:
        node = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.node.berth"))
    free: dict[str, Any] = {"event": "provision_set", "provision_state": "available"}
    free |= {"power_state": "power off", "maintenance": False, "resource_class": "baremetal"}
    agent, now = worker_roles.metal_agent(settings, cell), Clock().now()
    return NodeChanged(node=node, name=name, at=now, cell=cell, agent=agent, **free | state)
