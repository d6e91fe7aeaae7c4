"""`berth node`: publish a node's state like Ironic, for tests without Ironic."""

import uuid
from collections.abc import Sequence
from typing import Annotated

import typer
from rich.console import Console

from berth import wiring, worker_roles
from berth.commands.options import Json, StateDir
from berth.commands.terminal import effective, run, say, tell
from berth.operations import publishing
from berth.operations.errors import checked
from berth.settings import Settings
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.messages import NodeChanged

commands = typer.Typer(name="node", no_args_is_help=True)


@commands.callback()
def _group() -> None:
    """Keep `set` a sub-command although it is the only one."""


@commands.command("set")
def set_command(
    name: Annotated[str, typer.Argument(help="A name; its uuid is derived from it unless it is one.")],
    event: Annotated[
        str, typer.Option(help="The event's name: maintenance_set, provision_set, ...")
    ] = "update",
    provision_state: Annotated[str, typer.Option(help="available, cleaning, active, ...")] = "available",
    power_state: Annotated[str, typer.Option(help="power off, power on, error.")] = "power off",
    maintenance: Annotated[bool, typer.Option("--maintenance", help="Put it in maintenance.")] = False,
    resource_class: Annotated[
        str, typer.Option(help="Its one resource: baremetal is CUSTOM_BAREMETAL.")
    ] = "baremetal",
    cell: Annotated[str, typer.Option(help="The cell whose first agent builds on it.")] = "c1",
    trait: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="CUSTOM_...; may be repeated.")
    ] = None,
    deleted: Annotated[bool, typer.Option("--deleted", help="The node is gone from Ironic.")] = False,
    as_json: Json = False,
    state_dir: StateDir = None,
) -> None:
    """Publish an Ironic-style node event on ironic.node.CELL.EVENT."""
    settings = effective(state_dir=state_dir).settings
    node = node_event(
        settings, name, event, provision_state, power_state, maintenance, resource_class, cell, trait or [],
        deleted,
    )  # fmt: skip
    run(publish(settings, node, say, as_json))


def node_event(
    settings: Settings,
    name: str,
    event: str,
    provision_state: str,
    power_state: str,
    maintenance: bool,
    resource_class: str,
    cell: str,
    traits: Sequence[str],
    deleted: bool,
) -> NodeChanged:
    try:
        node = str(uuid.UUID(name))
    except ValueError:
        node = str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{name}.node.berth"))
    return NodeChanged(
        event=event,
        node=node,
        name=name,
        at=Clock().now(),
        cell=cell,
        agent=worker_roles.metal_agent(settings, cell),
        resource_class=resource_class,
        provision_state=provision_state,
        power_state=power_state,
        maintenance=maintenance,
        traits=tuple(traits),
        deleted=deleted,
    )


async def publish(settings: Settings, event: NodeChanged, say: Console, as_json: bool = False) -> int:
    event = checked(event)
    async with Bus(wiring.transport(settings, "client")) as bus:
        await publishing.publish(bus, event)
    key = topics.TOPIC_OF[type(event)].key(event)
    tell(say, as_json, f"published on {key}\nnode {event.node}", node=event.node, name=event.name, key=key)
    return 0
