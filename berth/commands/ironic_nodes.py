"""`berth ironic node`: lists and controls the nodes of a real or a simulated Ironic."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from berth.commands.ironic_access import HERE, AnyIronic
from berth.commands.options import Commands, argument, described, option, positional
from berth.commands.terminal import plain_table
from berth.settings import BadSetting
from bus.clock import Clock
from bus.errors import OperationRefused

if TYPE_CHECKING:  # HTTP clients load slowly, and most commands work without them
    from ironic_sync.api import IronicApi

_FIELDS = (
    "uuid", "name", "provision_state", "target_provision_state", "power_state", "maintenance",
    "instance_uuid", "resource_class", "conductor_group", "traits", "last_error",
)  # fmt: skip
_POWER = {
    "on": "power on", "off": "power off", "reboot": "rebooting", "soft-off": "soft power off",
    "soft-reboot": "soft rebooting",
}  # fmt: skip
_STATE_STYLES = {"available": "green", "active": "cyan", "error": "red"}
_POLL_SECONDS = 0.1
_FIELD_VALUES = "resource_class=gold properties/rack=R2 owner=null ..."

Json = dict[str, Any]
Node = Annotated[str, positional("A name or a uuid.", metavar="NODE")]
Nodes = Annotated[list[str], positional("Names or uuids.", metavar="NODE...")]
Wait = Annotated[bool, described("Wait until they are in a stable state; exit 1 if one failed.", "--wait")]

commands = Commands(
    no_args_is_help=True,
    help=f"Operate nodes by hand, of a simulated or a real Ironic: the one of the settings, or {HERE}. "
    "A node's life: create, manage, provide, deploy, undeploy, delete.",
)


@commands.command("list")
async def list_nodes(
    state: str = option("", "Only nodes in this provision state."),
    resource_class: str = option("", "Only nodes of this class."),
    conductor_group: str = option("", "Only nodes of this group."),
    maintenance: bool | None = option(
        None, "Only nodes in maintenance, or only nodes not in maintenance.", "--maintenance/--no-maintenance"
    ),
    limit: int = option(50, "How many at most.", min=1),
    *,
    at: AnyIronic,
) -> None:
    """List the nodes of an Ironic, one line each."""
    given = {"provision_state": state, "resource_class": resource_class, "conductor_group": conductor_group}
    filters: dict[str, Any] = {name: value for name, value in given.items() if value}
    if maintenance is not None:
        filters["maintenance"] = maintenance
    found: list[Json] = []
    async with at.api() as api:
        async for page in api.nodes(fields=_FIELDS, limit=min(limit, 1000), **filters):
            found += page
            if len(found) >= limit:
                break
    at.cli.rows(found[:limit], _table(found[:limit]))


def _table(nodes: Sequence[Json]) -> Table:
    rows = []
    for node in nodes:
        state = node["provision_state"]
        style = _STATE_STYLES.get(state, "red" if _failed(node) else "yellow")
        maintenance = "yes" if node["maintenance"] else ""
        of = (node["resource_class"] or "", node["instance_uuid"] or "")
        power = node["power_state"] or "?"
        rows.append((node["name"] or "", node["uuid"], Text(state, style=style), power, maintenance, *of))
    return plain_table(("name", "uuid", "state", "power", "maintenance", "class", "instance"), rows)


@commands.command("show")
async def show(node: Node, *, at: AnyIronic) -> None:
    """Show all fields of an Ironic node."""
    async with at.api() as api:
        found = await _known(api, node)
    if at.as_json:
        at.cli.rows([found], "")
        return
    for name, value in sorted(found.items()):
        if value not in (None, "", {}, []) and name not in ("links", "ports", "portgroups", "states"):
            at.cli.say.print(f"[bold]{name}[/bold]: {escape(str(value))}")


@dataclass(frozen=True)
class NewNodes:
    names: Annotated[list[str], positional("The names of new nodes.", metavar="NAME...")]
    resource_class: str = option("baremetal", "Its resource class.")
    driver: str = option("fake-hardware", "Ironic's hardware type.")
    conductor_group: str = option("", "The group of conductors that manage it.")
    prop: list[str] | None = option(None, "May be repeated.", "--property", metavar="NAME=VALUE")
    trait: list[str] | None = option(None, "May be repeated.", metavar="NAME")


@commands.command("create")
async def create(options: NewNodes, *, at: AnyIronic) -> None:
    """Create Ironic nodes in the state enroll; the commands `manage` and `provide` make them available."""
    properties = dict(_pair(text) for text in options.prop or ())
    async with at.api() as api:
        for name in options.names:
            made = await api.create_node(
                name=name, driver=options.driver, resource_class=options.resource_class,
                properties=properties, conductor_group=options.conductor_group,
            )  # fmt: skip
            if options.trait:
                await api.set_traits(made["uuid"], options.trait)
            sentence = f"{name}: {made['uuid']} is in {made['provision_state']}"
            at.cli.tell(sentence, **{field: made.get(field) for field in _FIELDS})


def _verb(name: str, target: str, help_: str) -> None:
    @commands.command(name, help=help_)
    async def set_state(nodes: Nodes, wait: Wait = False, *, at: AnyIronic) -> int:
        async with at.api() as api:
            for node in nodes:
                await api.set_provision_state(node, target)
            return await _report(at, api, nodes, wait)


_verb("manage", "manage", "Make nodes manageable: from enroll, available or a failure.")
_verb("provide", "provide", "Make manageable nodes available, through cleaning.")


@commands.command("deploy")
async def deploy(
    nodes: Nodes,
    instance: str = option("", "The uuid of the instance (default: a new one for each).", metavar="UUID"),
    image: str = option("file:///dev/null", "The image to write."),
    wait: Wait = False,
    *,
    at: AnyIronic,
) -> int:
    """Deploy Ironic nodes by hand like berth's agent: set the instance and the image, and deploy."""
    info = {"image_source": image, "image_checksum": "0" * 32, "root_gb": 10}
    async with at.api() as api:
        for node in nodes:
            claim = instance or Clock().uuid()
            await api.patch_node(node, [{"op": "add", "path": "/instance_uuid", "value": claim}])
            await api.patch_node(node, [{"op": "add", "path": "/instance_info", "value": info}])
            await api.set_provision_state(node, "active")
        return await _report(at, api, nodes, wait)


_verb("undeploy", "deleted", "Undeploy nodes: through cleaning they become available again.")
_verb("abort", "abort", "Abort a cleaning or a deployment that waits for the node's callback.")


@commands.command("delete")
async def delete(nodes: Nodes, *, at: AnyIronic) -> None:
    """Delete nodes in Ironic; they must be in state enroll, manageable or available, or in maintenance."""
    async with at.api() as api:
        for node in nodes:
            await api.delete_node(node)
            at.cli.tell(f"{node} is deleted", node=node, gone=True)


async def _change(at: AnyIronic, node: str, change: Callable[["IronicApi"], Coroutine[Any, Any, Any]]) -> int:
    async with at.api() as api:
        await change(api)
        return await _report(at, api, [node])


@commands.command("maintenance")
async def maintenance(
    node: Node,
    switch: Annotated[str, positional(metavar="on|off")],
    reason: str = option("", "Why."),
    *,
    at: AnyIronic,
) -> int:
    """Set or clear the maintenance mode of an Ironic node."""
    if switch not in ("on", "off"):
        raise BadSetting(f"maintenance is on or off, not {switch!r}")
    return await _change(at, node, lambda api: api.set_maintenance(node, switch == "on", reason))


@commands.command("power")
async def power(
    node: Node,
    switch: Annotated[str, positional(metavar="on|off|reboot|soft-off|soft-reboot")],
    *,
    at: AnyIronic,
) -> int:
    """Switch an Ironic node on or off, or restart it."""
    if switch not in _POWER:
        raise BadSetting(f"power is one of {', '.join(_POWER)}, not {switch!r}")
    return await _change(at, node, lambda api: api.set_power_state(node, _POWER[switch]))


@commands.command("traits")
async def traits(
    node: Node,
    names: list[str] | None = argument(None, "Without names, all traits are removed.", metavar="TRAIT..."),
    *,
    at: AnyIronic,
) -> int:
    """Replace all traits of an Ironic node by the given traits."""
    return await _change(at, node, lambda api: api.set_traits(node, names or ()))


@commands.command("set")
async def set_fields(
    node: Node,
    values: Annotated[list[str], positional(_FIELD_VALUES, metavar="FIELD=VALUE...")],
    *,
    at: AnyIronic,
) -> int:
    """Set fields of an Ironic node; a value that is no valid JSON is taken as text."""
    operations = [{"op": "add", "path": f"/{field}", "value": value} for field, value in map(_pair, values)]
    return await _change(at, node, lambda api: api.patch_node(node, operations))


async def _known(api: "IronicApi", node: str, fields: Sequence[str] | None = None) -> Json:
    found = await api.node(node, fields)
    if found is None:
        raise OperationRefused(f"this Ironic knows no node {node}")
    return found


async def _report(at: AnyIronic, api: "IronicApi", nodes: Sequence[str], wait: bool = False) -> int:
    """Print the state of Ironic nodes; with `wait` await their operations, and return 1 if one failed."""
    has_failed = False
    for name in nodes:
        node = await _known(api, name, _FIELDS)
        while wait and _moving(node):
            await asyncio.sleep(_POLL_SECONDS)
            node = await _known(api, name, _FIELDS)
        state, target = node["provision_state"], node["target_provision_state"]
        parts = [f"{state}, bound for {target}" if target else state, node["power_state"] or "power unknown"]
        parts += ["in maintenance"] * bool(node["maintenance"])
        parts += [f"instance {node['instance_uuid']}"] * bool(node["instance_uuid"])
        parts += [node["last_error"]] * bool(node["last_error"])
        at.cli.tell(f"{node['name'] or node['uuid']}: {'; '.join(parts)}", **node)
        has_failed = has_failed or (wait and _failed(node))
    return int(has_failed)


def _moving(node: Json) -> bool:
    held = node["provision_state"].endswith(" hold")
    return bool(node["target_provision_state"]) and not held and not _failed(node)


def _failed(node: Json) -> bool:
    state = node["provision_state"]
    unverified = state == "enroll" and node["last_error"]
    return bool(state.endswith("failed") or state == "error" or unverified)


def _pair(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadSetting(f"takes NAME=VALUE, not {text!r}")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
