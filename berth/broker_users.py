"""Administers RabbitMQ's users and their permissions, through its management API or by rabbitmqctl."""

import asyncio
import json
import re
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx
import msgspec

from berth.settings import BadSetting
from bus.broker_urls import addresses, first_url, vhost_of
from bus.errors import BrokerRefused, Unavailable
from bus.masking import masked

_SECONDS = 30.0
_COMMAND_SECONDS = 60.0  # for a rabbitmqctl: on a busy machine it needs seconds to start its Erlang VM
_POLL_SECONDS = 2.0  # for an answer of a management API that may not exist
# messages of rabbitmqctl for a missing object
_NOT_THERE = re.compile("does not exist|not[ _]found|no_such_user", re.IGNORECASE)
_HERE = ("127.0.0.1", "::1", "localhost")


def management_urls(amqp_url: str) -> list[str]:
    """Return the default URLs of RabbitMQ's management API, one for each address in the AMQP URL."""
    scheme, port = ("https", 15671) if amqp_url.startswith("amqps:") else ("http", 15672)
    hosts = dict.fromkeys(host for host, _ in addresses(amqp_url))
    return [f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}" for host in hosts]


def _may_serve(amqp_url: str, listeners: Iterable[Mapping[str, Any]] | None) -> bool:
    """Return whether a broker with these listeners may be that of the URL. Of an address on this machine the
    port must be among them: several brokers may run here. Other addresses may belong to a load balancer.
    """
    ports = {port for host, port in addresses(amqp_url) if host in _HERE}
    return not ports or listeners is None or bool(ports & {each.get("port") for each in listeners})


class Management:
    """Administers RabbitMQ's users through the management API; a repeated operation has no further effect."""

    def __init__(self, url: str, amqp_url: str) -> None:
        """Store the management API's `url`; if it has no user or password, use that of the AMQP URL."""
        parts, known = urlsplit(url), urlsplit(first_url(amqp_url))
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise BadSetting(f"--management {masked(url)}: must look like http://user:password@host:15672")
        user, password = parts.username or known.username, parts.password or known.password
        at = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="")
        self._url = urlunsplit(at).rstrip("/")
        self._auth = (unquote(user or "guest"), unquote(password or "guest"))
        self._vhost, self._amqp_url = vhost_of(amqp_url), amqp_url
        self.by = f"the management API at {self._url}"  # for messages

    async def answers(self) -> bool:
        """Return whether a management API answers there, and not that of another broker on this machine."""
        try:
            async with httpx.AsyncClient(timeout=_POLL_SECONDS) as http:
                found = await http.get(f"{self._url}/api/whoami", auth=self._auth)
                seen = await http.get(f"{self._url}/api/overview", auth=self._auth)
                listeners = seen.json().get("listeners") if seen.status_code == 200 else None
        except (httpx.HTTPError, ValueError):
            return False
        return found.status_code in (200, 401, 403) and _may_serve(self._amqp_url, listeners)

    async def users(self) -> set[str]:
        return {user["name"] for user in await self._call("GET", "users")}

    async def take(self, definitions: Mapping[str, Any]) -> None:
        """Import definitions in RabbitMQ's format: creates or changes users, permissions and policies."""
        await self._call("POST", "definitions", definitions)

    async def drop(self, user: str, *policies: str) -> None:
        """Delete a RabbitMQ user and the given queue policies; RabbitMQ closes the user's connections."""
        await self._call("DELETE", f"users/{quote(user, safe='')}")
        for policy in policies:
            await self._call("DELETE", f"policies/{quote(self._vhost, safe='')}/{quote(policy, safe='')}")

    async def queues(self) -> list[str]:
        path = f"queues/{quote(self._vhost, safe='')}?columns=name"
        return [queue["name"] for queue in await self._call("GET", path)]

    async def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        try:
            async with httpx.AsyncClient(timeout=_SECONDS) as http:
                answer = await http.request(method, f"{self._url}/api/{path}", json=body, auth=self._auth)
        except httpx.HTTPError as problem:
            raise Unavailable(f"{self.by}: {problem or type(problem).__name__}") from None
        if answer.status_code in (401, 403):
            raise BrokerRefused(
                f"{self.by} does not let {self._auth[0]} do this: it takes a user with the tag administrator"
            )
        if answer.status_code == 404 and method == "DELETE":
            return None
        if answer.is_error:
            raise BrokerRefused(f"{self.by}: {method} {path}: {answer.status_code} {answer.text[:500]}")
        return answer.json() if answer.content else None


class Rabbitmqctl:
    """Administers RabbitMQ's users by the command rabbitmqctl, which runs on the broker's machine."""

    def __init__(self, command: str, amqp_url: str) -> None:
        self.by = self._command = command
        self._vhost, self._amqp_url = vhost_of(amqp_url), amqp_url

    async def answers(self) -> bool:
        """Return whether the command finds a broker, and not another broker than that of the AMQP URL."""
        try:
            status = msgspec.json.decode(
                await self._run("status", "--formatter", "json"), type=dict[str, Any]
            )
        except (BrokerRefused, Unavailable, msgspec.DecodeError):
            return False
        return _may_serve(self._amqp_url, status.get("listeners"))

    async def users(self) -> set[str]:
        return {user["user"] for user in await self._listed("list_users")}

    async def take(self, definitions: Mapping[str, Any]) -> None:
        """Import definitions in RabbitMQ's format.

        The definitions are passed on standard input, so that no file and no process list contains passwords.
        `rabbitmqctl eval` is used, because `import_definitions` of rabbitmqctl 4.0.5 never reads standard
        input.
        """
        text = json.dumps(definitions).replace("\\", "\\\\").replace('"', '\\"')
        await self._run(
            "eval", given=f'ok = rabbit_definitions:import_raw(<<"{text}">>).'.encode(), quiet=False
        )

    async def drop(self, user: str, *policies: str) -> None:
        """Delete a user and these policies; a failure of one deletion does not stop the others."""
        ends = [self._end("delete_user", user)]
        ends += [self._end("clear_policy", "-p", self._vhost, policy) for policy in policies]
        for problem in await asyncio.gather(*ends, return_exceptions=True):  # all end, even if one fails
            if problem is not None:
                raise problem

    async def _end(self, *arguments: str) -> None:
        try:
            await self._run(*arguments)
        except BrokerRefused as refused:
            if not _NOT_THERE.search(str(refused)):
                raise

    async def queues(self) -> list[str]:
        return [queue["name"] for queue in await self._listed("list_queues", "-p", self._vhost, "name")]

    async def _listed(self, *arguments: str) -> list[dict[str, str]]:
        printed = await self._run(*arguments, "--formatter", "json")
        return msgspec.json.decode(printed or b"[]", type=list[dict[str, Any]])

    async def _run(self, *arguments: str, given: bytes = b"", quiet: bool = True) -> bytes:
        try:
            process = await asyncio.create_subprocess_exec(
                self._command,
                *(("--quiet",) if quiet else ()),
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
        except OSError as problem:
            raise Unavailable(f"{self._command}: {problem.strerror}") from None
        try:
            async with asyncio.timeout(_COMMAND_SECONDS):
                out, complaint = await process.communicate(given)
        except (asyncio.CancelledError, TimeoutError) as end:
            with suppress(ProcessLookupError):  # it has just ended
                process.kill()
            await process.wait()
            if isinstance(end, TimeoutError):
                what = f"{self._command} {arguments[0]}"
                raise Unavailable(f"{what}: it did not end within {_COMMAND_SECONDS:g} s") from None
            raise
        if process.returncode:
            reason = " ".join((complaint or out).decode(errors="replace").split())
            raise BrokerRefused(f"{self._command} {arguments[0]}: {re.sub(r'[^ -~]', '', reason)[:500]}")
        return out


BrokerUsers = Management | Rabbitmqctl


async def broker_users(amqp_url: str, management: str, rabbitmqctl: str) -> BrokerUsers:
    """Return an object that administers RabbitMQ's users: by the command `rabbitmqctl` or, if that is "", by
    the management API at the URL `management`.

    If both are "", use the first default URL of a management API that answers, or else the rabbitmqctl of a
    broker on this machine. Raise Unavailable if there is neither.
    """
    if rabbitmqctl:
        return Rabbitmqctl(rabbitmqctl, amqp_url)
    if management:
        return Management(management, amqp_url)
    several = [Management(url, amqp_url) for url in management_urls(amqp_url)]
    for usual in several:
        if await usual.answers():
            return usual
    command = shutil.which("rabbitmqctl")
    if command and any(host in _HERE for host, _ in addresses(amqp_url)):
        control = Rabbitmqctl(command, amqp_url)
        if await control.answers():
            return control
    tried = " and ".join(usual.by for usual in several)
    raise Unavailable(
        f"nothing to administer RabbitMQ with: {tried} does not answer for this broker, and no rabbitmqctl is"
        " here for it. Name one with --management URL (or the setting management_url) or --rabbitmqctl"
        " COMMAND; or make the user by hand, with what `berth cell permissions` prints"
    )
