"""`berth ironic node`: list and control the nodes of an Ironic, simulated or real."""

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from berth.commands.ironic_trouble import HERE, Json, Node, Run, Url, access_of, add_trouble
from berth.commands.terminal import tell, write_json
from berth.configuration import Effective
from berth.settings import BadSetting, Settings
from bus.clock import Clock
from bus.errors import OperationRefused

if TYPE_CHECKING:  # HTTP clients load slowly, and most commands need none
    from ironic_sync.api import IronicApi

Work = Callable[["IronicApi"], Coroutine[Any, Any, int | None]]
Reach = Callable[[str, Work], None]  # do the work with the Ironic at this URL

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

Nodes = Annotated[list[str], typer.Argument(metavar="NODE...", help="Names or uuids.")]
Wait = Annotated[bool, typer.Option("--wait", help="Until they have come to rest; exit 1 if one failed.")]
AsJson = Annotated[bool, typer.Option("--json", help="Whole, as JSON lines.")]


def node_commands(settings: Callable[[], Effective], run: Run, say: Console) -> typer.Typer:
    """Return the sub-commands of `berth ironic node`."""

    def reach(url: str, work: Work) -> None:
        run(_with_api(settings().settings, url, work))

    app = typer.Typer(
        no_args_is_help=True,
        help=f"Drive nodes by hand, of a simulated Ironic or a real one: the one of the settings, or {HERE}. "
        "A node's life: create, manage, provide, deploy, undeploy, delete.",
    )
    _add_looking(app, reach, say)
    _add_life(app, reach, say)
    _add_state(app, reach, say)
    add_trouble(app, settings, run, say)
    return app


# Looking


def _add_looking(app: typer.Typer, reach: Reach, say: Console) -> None:
    @app.command("list")
    def list_(
        state: Annotated[str, typer.Option(help="Only those in this provision state.")] = "",
        resource_class: Annotated[str, typer.Option(help="Only those of this class.")] = "",
        conductor_group: Annotated[str, typer.Option(help="Only those of this group.")] = "",
        maintenance: Annotated[
            bool | None,
            typer.Option("--maintenance/--no-maintenance", help="Only those, or only the others."),
        ] = None,
        limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 50,
        as_json: AsJson = False,
        url: Url = "",
    ) -> None:
        """One line for each node."""
        given = {
            "provision_state": state,
            "resource_class": resource_class,
            "conductor_group": conductor_group,
        }
        filters: dict[str, Any] = {name: value for name, value in given.items() if value}
        if maintenance is not None:
            filters["maintenance"] = maintenance

        async def work(api: "IronicApi") -> None:
            found: list[Json] = []
            async for page in api.nodes(fields=_FIELDS, limit=min(limit, 1000), **filters):
                found += page
                if len(found) >= limit:
                    break
            _show_list(found[:limit], as_json, say)

        reach(url, work)

    @app.command()
    def show(node: Node, as_json: AsJson = False, url: Url = "") -> None:
        """All there is about one node."""

        async def work(api: "IronicApi") -> None:
            told = await _known(api, node)
            if as_json:
                write_json(told)
                return
            for name, value in sorted(told.items()):
                if value not in (None, "", {}, []) and name not in ("links", "ports", "portgroups", "states"):
                    say.print(f"[bold]{name}[/bold]: {escape(str(value))}")

        reach(url, work)


def _show_list(nodes: Sequence[Json], as_json: bool, say: Console) -> None:
    if as_json:
        for node in nodes:
            write_json(node)
        return
    table = Table(
        "name", "uuid", "state", "power", "maintenance", "class", "instance", box=None, pad_edge=False
    )
    for node in nodes:
        style = _STATE_STYLES.get(node["provision_state"], "red" if _failed(node) else "yellow")
        table.add_row(
            escape(node["name"] or ""), node["uuid"], f"[{style}]{node['provision_state']}[/{style}]",
            node["power_state"] or "?", "yes" if node["maintenance"] else "",
            escape(node["resource_class"] or ""), node["instance_uuid"] or "",
        )  # fmt: skip
    say.print(table)


# A node's life


def _add_life(app: typer.Typer, reach: Reach, say: Console) -> None:
    @app.command()
    def create(
        names: Annotated[list[str], typer.Argument(metavar="NAME...", help="The names of new nodes.")],
        resource_class: Annotated[str, typer.Option(help="What it is placed by.")] = "baremetal",
        driver: Annotated[str, typer.Option(help="Ironic's hardware type.")] = "fake-hardware",
        conductor_group: Annotated[str, typer.Option(help="Which conductors look after it.")] = "",
        prop: Annotated[
            list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="May be repeated.")
        ] = None,
        trait: Annotated[list[str] | None, typer.Option(metavar="NAME", help="May be repeated.")] = None,
        as_json: AsJson = False,
        url: Url = "",
    ) -> None:
        """New nodes, in enroll. Then: manage, and provide."""
        properties = dict(_pair(text) for text in prop or ())

        async def work(api: "IronicApi") -> None:
            for name in names:
                made = await api.create_node(
                    name=name, driver=driver, resource_class=resource_class, properties=properties,
                    conductor_group=conductor_group,
                )  # fmt: skip
                if trait:
                    await api.set_traits(made["uuid"], trait)
                sentence = f"{name}: {made['uuid']} is in {made['provision_state']}"
                tell(say, as_json, sentence, **{field: made.get(field) for field in _FIELDS})

        reach(url, work)

    def verb(name: str, target: str, help_: str) -> None:
        @app.command(name, help=help_)
        def _(nodes: Nodes, wait: Wait = False, as_json: AsJson = False, url: Url = "") -> None:
            async def work(api: "IronicApi") -> int:
                for node in nodes:
                    await api.set_provision_state(node, target)
                return await _told(api, nodes, wait, say, as_json)

            reach(url, work)

    verb("manage", "manage", "Have Ironic manage them: from enroll, or back from available or a failure.")
    verb("provide", "provide", "From manageable through cleaning to available: they can be built on then.")

    @app.command()
    def deploy(
        nodes: Nodes,
        instance: Annotated[
            str, typer.Option(metavar="UUID", help="Whose; a new one for each otherwise.")
        ] = "",
        image: Annotated[str, typer.Option(help="What is written to it.")] = "file:///dev/null",
        wait: Wait = False,
        as_json: AsJson = False,
        url: Url = "",
    ) -> None:
        """Deploy nodes by hand as berth's agent does: set the instance, the image, and deploy."""

        async def work(api: "IronicApi") -> int:
            for node in nodes:
                info = {"image_source": image, "image_checksum": "0" * 32, "root_gb": 10}
                claim = instance or Clock().uuid()
                await api.patch_node(node, [{"op": "add", "path": "/instance_uuid", "value": claim}])
                await api.patch_node(node, [{"op": "add", "path": "/instance_info", "value": info}])
                await api.set_provision_state(node, "active")
            return await _told(api, nodes, wait, say, as_json)

        reach(url, work)

    verb("undeploy", "deleted", "Take the instance off them: through cleaning they become available again.")
    verb("inspect", "inspect", "Have Ironic look at their hardware, from manageable.")
    verb("abort", "abort", "Break off what waits: a cleaning, a deploy, an inspection, a rescue, a service.")

    @app.command()
    def delete(nodes: Nodes, as_json: AsJson = False, url: Url = "") -> None:
        """Remove them from Ironic: from enroll, manageable or available, or from maintenance."""

        async def work(api: "IronicApi") -> None:
            for node in nodes:
                await api.delete_node(node)
                tell(say, as_json, f"{node} is gone", node=node, gone=True)

        reach(url, work)


# What it is and how it is


def _add_state(app: typer.Typer, reach: Reach, say: Console) -> None:
    @app.command()
    def maintenance(
        node: Node,
        switch: Annotated[str, typer.Argument(metavar="on|off")],
        reason: Annotated[str, typer.Option(help="Why.")] = "",
        as_json: AsJson = False,
        url: Url = "",
    ) -> None:
        """Close it to new builds, or open it again."""
        if switch not in ("on", "off"):
            raise BadSetting(f"maintenance is on or off, not {switch!r}")

        async def work(api: "IronicApi") -> int:
            await api.set_maintenance(node, switch == "on", reason)
            return await _told(api, [node], False, say, as_json)

        reach(url, work)

    @app.command()
    def power(
        node: Node,
        switch: Annotated[str, typer.Argument(metavar="on|off|reboot|soft-off|soft-reboot")],
        as_json: AsJson = False,
        url: Url = "",
    ) -> None:
        """Switch it."""
        if switch not in _POWER:
            raise BadSetting(f"power is one of {', '.join(_POWER)}, not {switch!r}")

        async def work(api: "IronicApi") -> int:
            await api.set_power_state(node, _POWER[switch])
            return await _told(api, [node], False, say, as_json)

        reach(url, work)

    @app.command()
    def traits(
        node: Node,
        names: Annotated[
            list[str] | None, typer.Argument(metavar="TRAIT...", help="None: no traits.")
        ] = None,
        as_json: AsJson = False,
        url: Url = "",
    ) -> None:
        """Set the traits of a node, and remove all others."""

        async def work(api: "IronicApi") -> int:
            await api.set_traits(node, names or ())
            return await _told(api, [node], False, say, as_json)

        reach(url, work)

    @app.command("set")
    def set_(
        node: Node,
        values: Annotated[
            list[str],
            typer.Argument(
                metavar="FIELD=VALUE...", help="resource_class=gold properties/rack=R2 owner=null ..."
            ),
        ],
        as_json: AsJson = False,
        url: Url = "",
    ) -> None:
        """Patch its fields; values are JSON, or else text."""
        operations = [
            {"op": "add", "path": f"/{field}", "value": value} for field, value in map(_pair, values)
        ]

        async def work(api: "IronicApi") -> int:
            await api.patch_node(node, operations)
            return await _told(api, [node], False, say, as_json)

        reach(url, work)


# What they share


async def _with_api(settings: Settings, url: str, work: Work) -> int | None:
    from ironic_sync.api import IronicApi, IronicRefused

    try:
        async with IronicApi(access_of(settings, url)) as api:
            return await work(api)
    except IronicRefused as refused:
        raise OperationRefused(str(refused)) from None


async def _known(api: "IronicApi", node: str, fields: Sequence[str] | None = None) -> Json:
    told = await api.node(node, fields)
    if told is None:
        raise OperationRefused(f"this Ironic knows no node {node}")
    return told


async def _told(api: "IronicApi", nodes: Sequence[str], wait: bool, say: Console, as_json: bool) -> int:
    """Print a line for each node; return 1 if an awaited node has failed."""
    failed = False
    for node in nodes:
        told = await _known(api, node, _FIELDS)
        while wait and _moving(told):
            await asyncio.sleep(_POLL_SECONDS)
            told = await _known(api, node, _FIELDS)
        state, target = told["provision_state"], told["target_provision_state"]
        words = [f"{state}, bound for {target}" if target else state, told["power_state"] or "power unknown"]
        words += ["in maintenance"] * bool(told["maintenance"])
        words += [f"instance {told['instance_uuid']}"] * bool(told["instance_uuid"])
        words += [told["last_error"]] * bool(told["last_error"])
        tell(say, as_json, f"{told['name'] or told['uuid']}: {'; '.join(words)}", **told)
        failed = failed or (wait and _failed(told))
    return int(failed)


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
