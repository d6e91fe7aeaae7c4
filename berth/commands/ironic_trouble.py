"""Fault injection for a simulated Ironic, and the options by which commands select an Ironic."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import unquote, urlsplit

from berth.commands.options import Commands, argument, option, positional
from berth.commands.terminal import Cli, effective
from berth.settings import BadSetting, Settings
from bus.errors import OperationRefused

if TYPE_CHECKING:
    from ironic_sync.api import IronicApi
    from ironic_sync.openstack import Access

Json = dict[str, Any]

HERE = "http://127.0.0.1:6385"
Node = Annotated[str, positional("A name or a uuid.", metavar="NODE")]

commands = Commands()


@dataclass(frozen=True)
class AnyIronic:
    """Options that select the Ironic of a command, and whether the command prints JSON."""

    as_json: bool = option(False, "Whole, as JSON lines.", "--json")
    url: str = option(
        "", "Another Ironic than that of the settings; http://user:password@... if it asks.", metavar="URL"
    )

    @cached_property
    def cli(self) -> Cli:
        return Cli(effective().settings, self.as_json)

    @asynccontextmanager
    async def api(self) -> AsyncIterator["IronicApi"]:
        """Yield a client of the selected Ironic's API; a refusal of Ironic raises OperationRefused."""
        from ironic_sync.api import IronicApi, IronicRefused

        try:
            async with IronicApi(access_of(self.cli.settings, self.url)) as api:
                yield api
        except IronicRefused as refused:
            raise OperationRefused(str(refused)) from None


@commands.command("fail")
async def fail(
    node: Node,
    work: str = argument("clean", "clean, deploy, delete, inspect, verify, rescue, service, adopt, power"),
    how: str = option("step", "step, prepare (before the first), timeout; never: not."),
    *,
    at: AnyIronic,
) -> None:
    """Simulated Ironic only: make the next operation of the given type on a node fail."""
    fault = None if how == "never" else how
    sentence = f"{node}: its next {work} {'behaves normally' if fault is None else f'fails ({how})'}"
    await _request(at, f"nodes/{node}/fault", {"work": work, "fault": fault}, sentence)


@commands.command("bmc")
async def bmc(
    node: Node,
    reply: Annotated[
        str, positional("'power on' or 'off', 'stuck on' or 'off', unreachable, error; or well.")
    ],
    *,
    at: AnyIronic,
) -> None:
    """Simulated Ironic only: set how a node's BMC answers, whatever state Ironic has recorded."""
    body = {"says": None if reply == "well" else reply}
    await _request(
        at, f"nodes/{node}/bmc", body, f"{node}: its BMC is {reply}; Ironic notices at its next check"
    )


@commands.command("storm")
async def storm(
    count: Annotated[int, positional("How many nodes.", min=1)],
    target: str = option("provide", "The verb: provide, active, deleted, ..."),
    *,
    at: AnyIronic,
) -> None:
    """Simulated Ironic only: request the same provision state for many nodes at the same time."""
    await _request(at, "storm", {"target": target, "count": count}, "")


async def _request(ironic: AnyIronic, path: str, body: Json, sentence: str) -> None:
    import httpx

    from ironic_sync.api import IronicUnavailable

    access = access_of(ironic.cli.settings, ironic.url)
    at = access.url.rstrip("/")
    try:
        async with httpx.AsyncClient(auth=access.http_auth(), timeout=30.0, trust_env=False) as client:
            answer = await client.put(f"{at}/sim/{path}", json=body)
    except httpx.TransportError as problem:
        raise IronicUnavailable(f"Ironic at {at} cannot be reached: {problem}") from None
    if answer.status_code == 404 and "could not be found" not in answer.text:
        raise OperationRefused(
            f"the Ironic at {at} is real: faults can be injected only into a simulated one"
        )
    if answer.status_code >= 400:
        raise OperationRefused(_sentence(answer.text))
    nodes = 1 if sentence else answer.json()["nodes"]
    ironic.cli.tell(sentence or f"{nodes} nodes were changed", **{**body, "nodes": nodes})


def _sentence(text: str) -> str:
    try:
        return str(json.loads(json.loads(text)["error_message"])["faultstring"])
    except (ValueError, KeyError, TypeError):
        return text


def access_of(settings: Settings, url: str) -> "Access":
    """Return the URL and credentials of an Ironic's API, from `url` or, if it is empty, the settings."""
    from berth.ironic import access
    from ironic_sync.openstack import Access

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
