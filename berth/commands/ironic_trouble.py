"""Trouble for a node, which only a simulated Ironic can be asked for; and the way to any Ironic."""

import json
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

import typer
from rich.console import Console

from berth.commands.options import Json as AsJson
from berth.commands.terminal import tell
from berth.configuration import Effective
from berth.settings import BadSetting, Settings
from bus.errors import OperationRefused

if TYPE_CHECKING:
    from ironic_sync import Access

Run = Callable[[Coroutine[Any, Any, int | None]], None]
Json = dict[str, Any]

HERE = "http://127.0.0.1:6385"
Url = Annotated[
    str,
    typer.Option(
        metavar="URL", help="Another Ironic than that of the settings; http://user:password@... if it asks."
    ),
]
Node = Annotated[str, typer.Argument(metavar="NODE", help="A name or a uuid.")]


def add_trouble(app: typer.Typer, settings: Callable[[], Effective], run: Run, say: Console) -> None:
    """Add the sub-commands of `berth ironic node` that inject faults."""

    def ask(url: str, path: str, body: Json, told: str, as_json: bool) -> None:
        run(_trouble(access_of(settings().settings, url), path, body, told, say, as_json))

    @app.command()
    def fail(
        node: Node,
        work: Annotated[
            str,
            typer.Argument(help="clean, deploy, delete, inspect, verify, rescue, service, adopt, power, ..."),
        ] = "clean",
        how: Annotated[
            str, typer.Option(help="step, prepare (before the first), timeout; never: not.")
        ] = "step",
        as_json: AsJson = False,
        url: Url = "",
    ) -> None:
        """Simulated only: its next work of this kind fails."""
        fault = None if how == "never" else how
        told = f"{node}: its next {work} {'goes as it goes' if fault is None else f'fails ({how})'}"
        ask(url, f"nodes/{node}/fault", {"work": work, "fault": fault}, told, as_json)

    @app.command()
    def bmc(
        node: Node,
        says: Annotated[
            str,
            typer.Argument(
                help="'power on', 'power off', 'stuck on', 'stuck off', unreachable, error; or well."
            ),
        ],
        as_json: AsJson = False,
        url: Url = "",
    ) -> None:
        """Simulated only: set the answers of a node's BMC, whatever Ironic's state is."""
        body = {"says": None if says == "well" else says}
        told = f"{node}: its BMC is {says}; Ironic will see when it looks"
        ask(url, f"nodes/{node}/bmc", body, told, as_json)

    @app.command()
    def storm(
        count: Annotated[int, typer.Argument(min=1, help="How many nodes.")],
        target: Annotated[str, typer.Option(help="The verb: provide, active, deleted, ...")] = "provide",
        as_json: AsJson = False,
        url: Url = "",
    ) -> None:
        """Simulated only: request this of many nodes in a permitted state together."""
        ask(url, "storm", {"target": target, "count": count}, "", as_json)


async def _trouble(access: "Access", path: str, body: Json, told: str, say: Console, as_json: bool) -> int:
    import httpx

    from ironic_sync.api import IronicUnavailable

    at = access.url.rstrip("/")
    try:
        async with httpx.AsyncClient(auth=access.http_auth(), timeout=30.0, trust_env=False) as client:
            answer = await client.put(f"{at}/sim/{path}", json=body)
    except httpx.TransportError as problem:
        raise IronicUnavailable(f"Ironic at {at} cannot be reached: {problem}") from None
    if answer.status_code == 404 and "could not be found" not in answer.text:
        raise OperationRefused(
            f"the Ironic at {at} is a real one: only a simulated one can be asked for trouble"
        )
    if answer.status_code >= 400:
        raise OperationRefused(_sentence(answer.text))
    nodes = 1 if told else answer.json()["nodes"]
    tell(say, as_json, told or f"{nodes} nodes were asked", **{**body, "nodes": nodes})
    return 0


def _sentence(text: str) -> str:
    try:
        return str(json.loads(json.loads(text)["error_message"])["faultstring"])
    except (ValueError, KeyError, TypeError):
        return text


def access_of(settings: Settings, url: str) -> "Access":
    """Return the access to the Ironic of the command: that of the settings, unless it names another one."""
    from berth.ironic import access
    from ironic_sync import Access

    if not url:
        return access(settings) if settings.ironic.is_read else Access(url=HERE)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadSetting("--url takes a URL of Ironic's API, such as http://127.0.0.1:6385")
    user, password = unquote(parts.username or ""), unquote(parts.password or "")
    return Access(
        url=f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}",
        auth_type="http_basic" if user else "none",
        auth={"username": user, "password": password} if user else {},
    )
