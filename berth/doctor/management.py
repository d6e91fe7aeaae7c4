"""Reads the state of a RabbitMQ cluster from its management API."""

import asyncio
import re
from collections.abc import Iterator, Sequence
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import httpx

from berth.doctor.seen import DurableQueue, ManagementSeen
from bus.broker_urls import first_url, vhost_of
from bus.clock import Clock

ANSWER_SECONDS = 5.0
_NODE_COLUMNS = "name,running,partitions,mem_alarm,disk_free_alarm"
_COLUMNS = "name,type,members,online,leader,durable,messages,consumers,node,slave_nodes,state"
_AGENTS_QUEUE = re.compile(r"(agent\.[\w-]+\.[\w-]+|gateway\.[\w-]+):.")


async def read_cluster(urls: Sequence[str], amqp_url: str, clock: Clock, exchange: str) -> ManagementSeen:
    """Return the state of a RabbitMQ cluster from the first URL of its management API that answers, or an
    empty state if none answers. `exchange`: the exchange of the berth to report about.
    """
    reports = await asyncio.gather(*(read_management(url, amqp_url, clock, exchange) for url in urls))
    return next((report for report in reports if report is not None), ManagementSeen())


async def read_management(
    url: str, amqp_url: str, clock: Clock, exchange: str = "berth"
) -> ManagementSeen | None:
    """Return the state that RabbitMQ's management API at this URL reports, or None without a valid answer.

    `amqp_url` has the virtual host and, if `url` has none, user and password; `exchange` is berth's exchange.
    """
    parts, known = urlsplit(url), urlsplit(first_url(amqp_url))
    at = urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2])).rstrip("/")
    user, password = parts.username or known.username, parts.password or known.password
    credentials = unquote(user or "guest"), unquote(password or "guest")
    vhost = quote(vhost_of(amqp_url), safe="")
    try:
        async with asyncio.timeout(ANSWER_SECONDS), httpx.AsyncClient(auth=credentials) as http:

            async def listed(path: str) -> list[dict[str, Any]]:
                response = await http.get(f"{at}/api/{path}")
                return response.json() if response.status_code == 200 else []

            response = await http.get(f"{at}/api/nodes?columns={_NODE_COLUMNS}")
            nodes = response.json() if response.status_code == 200 else []
            ahead = parsedate_to_datetime(response.headers["date"]).timestamp() + 0.5 - clock.now()
            queues = await listed(f"queues/{vhost}?columns={_COLUMNS}")
            flags = await listed("feature-flags")
            deprecated = await listed("deprecated-features/used")  # since RabbitMQ 3.13
            bindings = []
            if len(nodes) > 1:
                bindings = await listed(f"exchanges/{vhost}/{quote(exchange, safe='')}/bindings/source")
    except (httpx.HTTPError, ValueError, KeyError, TimeoutError):
        return None
    return ManagementSeen(
        alarms=tuple(_alarms(nodes)),
        clock=ahead,
        nodes={str(node["name"]): bool(node.get("running")) for node in nodes},
        partitioned=tuple(str(node["name"]) for node in nodes if node.get("partitions")),
        members={
            str(queue["name"]): tuple(queue["members"])
            for queue in queues
            if queue.get("type") == "quorum" and "members" in queue
        },
        leaderless=tuple(str(queue["name"]) for queue in queues if _is_leaderless(queue)),
        on_one_node=_on_one_node(queues, bindings),
        disabled=tuple(
            str(flag["name"])
            for flag in flags
            if flag.get("state") == "disabled" and flag.get("stability") != "experimental"
        ),
        deprecated=tuple(str(feature["name"]) for feature in deprecated),
        vhost=vhost_of(amqp_url),
        of_agents=tuple(_of_agents(queues, exchange)),
    )


def _alarms(nodes: Sequence[dict[str, Any]]) -> Iterator[str]:
    for resource, name in (("memory", "mem"), ("disk", "disk_free")):
        if short := [str(node["name"]) for node in nodes if node.get(f"{name}_alarm")]:
            yield f"{resource} at {', '.join(short)}"


def _is_leaderless(queue: dict[str, Any]) -> bool:
    """Return whether a quorum queue has no leader that runs. RabbitMQ reports its former leader, and counts a
    member that does not reply as not online.
    """
    if queue.get("type") != "quorum" or "online" not in queue:
        return False
    online = queue["online"]
    return 2 * len(online) <= len(queue.get("members", ())) or queue.get("leader") not in online


def _on_one_node(queues: Sequence[dict[str, Any]], bindings: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the node of each bound, durable classic queue without a mirror, by queue name. Queues on a node
    that is down are included, because RabbitMQ does not list their bindings.
    """
    bound = {binding.get("destination") for binding in bindings}
    return {
        str(queue["name"]): str(queue.get("node", ""))
        for queue in queues
        if queue.get("type") == "classic" and queue.get("durable") and not queue.get("slave_nodes")
        if queue["name"] in bound or queue.get("state") == "down"
    }


def _of_agents(queues: list[dict[str, Any]], exchange: str) -> Iterator[DurableQueue]:
    """Yield the durable queues of agents and gateways among `queues` of the berth with this exchange."""
    from bus.rabbit.topology import BrokerNames

    before = BrokerNames(exchange).queue("")
    for queue in queues:
        at_broker = str(queue["name"])
        name = at_broker.removeprefix(before).replace("+", "*")
        if at_broker.startswith(before) and queue.get("durable") and _AGENTS_QUEUE.match(name):
            counts = int(queue.get("messages") or 0), int(queue.get("consumers") or 0)
            yield DurableQueue(name, at_broker, *counts)
