"""`berth ironic node`: lists and changes the nodes of a real or a simulated Ironic."""

import json
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from berth.commands.ironic_access import HERE, AnyIronic
from berth.kit.command_groups import Commands
from berth.kit.listing import plain_table
from berth.kit.options import option, positional
from berth.settings import BadSetting
from bus.errors import OperationRefused
from ironic_sync.core.rule import class_text

if TYPE_CHECKING:  # HTTP clients load slowly, and most commands work without them
    from ironic_sync.api import IronicApi

_FIELDS = (
    "uuid", "name", "provision_state", "target_provision_state", "power_state", "maintenance",
    "instance_uuid", "resource_class", "conductor_group", "traits", "last_error",
)  # fmt: skip
_STATE_STYLES = {"available": "green", "active": "cyan", "error": "red"}
_FIELD_VALUES = "resource_class=gold properties/rack=R2 owner=null ..."

Json = dict[str, Any]
Node = Annotated[str, positional("A name or a uuid.", metavar="NODE")]

commands = Commands(
    no_args_is_help=True,
    help=f"Read and change nodes of a simulated or a real Ironic: the one of the settings, or {HERE}. "
    "`openstack baremetal node` has more operations.",
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
        if name == "resource_class" and value:
            value = class_text(str(value))
        if value not in (None, "", {}, []) and name not in ("links", "ports", "portgroups", "states"):
            at.cli.say.print(f"[bold]{name}[/bold]: {escape(str(value))}")


async def _change(
    at: AnyIronic, ident: str, change: Callable[["IronicApi"], Coroutine[Any, Any, Any]]
) -> None:
    """Change an Ironic node, and print its state."""
    async with at.api() as api:
        await change(api)
        node = await _known(api, ident, _FIELDS)
    state, target = node["provision_state"], node["target_provision_state"]
    parts = [f"{state}, bound for {target}" if target else state, node["power_state"] or "power unknown"]
    parts += ["in maintenance"] * bool(node["maintenance"])
    parts += [f"instance {node['instance_uuid']}"] * bool(node["instance_uuid"])
    parts += [f"resource class {class_text(node['resource_class'])}"] * bool(node["resource_class"])
    parts += [node["last_error"]] * bool(node["last_error"])
    at.cli.tell(f"{node['name'] or node['uuid']}: {'; '.join(parts)}", **node)


@commands.command("set")
async def set_fields(
    node: Node,
    values: Annotated[list[str] | None, positional(_FIELD_VALUES, metavar="FIELD=VALUE...")] = None,
    maintenance: str = option("", "Set or clear its maintenance mode.", metavar="on|off"),
    reason: str = option("", "Why it is in maintenance.", metavar="TEXT"),
    *,
    at: AnyIronic,
) -> None:
    """Set fields or the maintenance mode of an Ironic node; a value that is no valid JSON is a text."""
    if maintenance not in ("", "on", "off"):
        raise BadSetting(f"--maintenance is on or off, not {maintenance!r}")
    if reason and maintenance != "on":
        raise BadSetting("--reason is for --maintenance on")
    if not (values or maintenance):
        raise BadSetting("nothing to set: give FIELD=VALUE or --maintenance")
    operations = [
        {"op": "add", "path": f"/{field}", "value": value} for field, value in map(_pair, values or ())
    ]

    async def set_all(api: "IronicApi") -> None:
        if operations:
            await api.patch_node(node, operations)
        if maintenance:
            await api.set_maintenance(node, maintenance == "on", reason)

    await _change(at, node, set_all)


async def _known(api: "IronicApi", node: str, fields: Sequence[str] | None = None) -> Json:
    found = await api.node(node, fields)
    if found is None:
        raise OperationRefused(f"this Ironic knows no node {node}")
    return found


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
