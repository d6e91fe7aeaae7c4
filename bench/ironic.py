"""Measures the time from Ironic's event to a claimable node: at a steady rate, in a storm, for a build.

A simulated Ironic with 10,000 nodes, RabbitMQ and PostgreSQL, workers in either layout. ironic_sync receives
the notifications and confirms available nodes by a read. A node is claimable when placement has published
the node's free inventory to schedulers, or has returned the node as a candidate to a query. The time starts
at the timestamp in Ironic's event.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from bench.durable import of_new_servers
from bench.ironic_site import STORM, Site, hop_means, hop_sums, prepare, processes
from bench.ironic_watch import PATIENCE, Watch, now
from bench.loading import check_clean
from bench.own_servers import broker_and_database
from berth.loadtest import Load, LoadPlan, percentile
from bus import topics
from bus.clock import Clock, monotonic
from bus.delivery.runner import Listener
from bus.messages import BuildEnded, BuildRequested, BuildUnplaceable
from bus.requests import Flavor
from deploy.servers import free_port
from ironic_sync.api import IronicApi
from ironic_sync.core import node as ironic_node

_SHARES = ("p50", 0.5), ("p99", 0.99), ("longest", 1.0)
WAITING = "waiting"  # prefix of the names of the nodes in the storm
_NEWEST: dict[str, Any] = {"sort_key": "provision_updated_at", "sort_dir": "desc"}
_SETTLES = 5.0  # seconds until the first sweep has ended
BEFORE = 0.05  # seconds between a node's event and the build for this node

R = TypeVar("R")
Stage = Callable[[Watch, IronicApi], Awaitable[R]]


@dataclass(frozen=True)
class SteadyNews:
    """The delays from an event of Ironic to a claimable node, in seconds, at a steady rate of events."""

    rate: float
    seconds: float
    delays: tuple[float, ...]
    used: str
    boots: float = 0.0  # boots per second at the same time

    def at(self, share: float) -> float:
        return 1000 * percentile(self.delays, share)

    def __str__(self) -> str:
        shares = ", ".join(f"{name} {self.at(share):.1f} ms" for name, share in _SHARES)
        events = f"{self.rate:.0f} events/s for {self.seconds:.0f} s"
        if self.boots:
            events += f" with {self.boots:.0f} boots/s"
        return f"{events}, {len(self.delays)} nodes opened: {shares}\n    {self.used}"


async def _steady(watch: Watch, seconds: float, boots: float = 0.0) -> SteadyNews:
    await watch.until(lambda: _most(watch, 0.7), "the nodes are known")
    if not boots:
        return await _measured(watch, seconds)
    await watch.until(lambda: _has(watch, watch.site.hosts, "VCPU"), "the hosts are known")
    plan = LoadPlan(boots=int(boots * (_SETTLES + seconds)), rate=boots)
    async with asyncio.TaskGroup() as group:
        load = group.create_task(Load(watch.bus, plan).run())
        steady = await _measured(watch, seconds)
    check_clean(load.result())
    return replace(steady, boots=load.result().per_second)


async def _measured(watch: Watch, seconds: float) -> SteadyNews:
    await asyncio.sleep(_SETTLES)
    watch.delays.clear()
    before, received, began, spent = await hop_sums(watch.site), watch.received, monotonic(), watch.spending()
    await asyncio.sleep(seconds)
    rate = (watch.received - received) / (monotonic() - began)
    used = f"{spent()}\n    means: {hop_means(before, await hop_sums(watch.site))}"
    if not watch.delays:
        sys.exit("no node became available")
    return SteadyNews(rate, seconds, tuple(watch.delays), used)


async def _most(watch: Watch, share: float) -> bool:
    return await watch.fitting() >= share * watch.site.nodes


async def _storm(watch: Watch, api: IronicApi) -> str:
    site = watch.site
    await watch.until(lambda: _has(watch, site.nodes - site.waiting), "the nodes are known")
    await asyncio.sleep(5.0)  # the first sweep has ended
    os.kill(next(process for process, role in watch.roles.items() if role == "sim"), STORM)
    await watch.until(lambda: _some_open(api), "the first has been cleaned")
    spent = watch.spending()
    await watch.until(lambda: _has(watch, site.nodes), "all are claimable")
    done, used = now(), spent()
    opened = await _opened(api)
    if len(opened) != site.waiting:
        sys.exit(f"{len(opened)} nodes became available, not {site.waiting}")
    return (
        f"{site.waiting} nodes become available within {opened[-1] - opened[0]:.2f} s:"
        f" all claimable {done - opened[0]:.2f} s after the first, {done - opened[-1]:.2f} s after the last"
        f"\n    {used}"
    )


async def _some_open(api: IronicApi) -> bool:
    async for page in api.nodes(fields=("uuid", "name"), limit=1, provision_state="available", **_NEWEST):
        return bool(page) and str(page[0]["name"]).startswith(WAITING)
    return False


async def _opened(api: IronicApi) -> list[float]:
    """Return when each available node with a name that begins with WAITING became available, by Ironic's
    clock, earliest first.
    """
    fields = ("uuid", "name", "provision_updated_at")
    pages = api.nodes(fields=fields, provision_state="available", **_NEWEST)
    nodes = [node async for page in pages for node in page if str(node["name"]).startswith(WAITING)]
    return sorted(ironic_node.seconds(node["provision_updated_at"]) for node in nodes)


async def _has(watch: Watch, count: int, resource_class: str = "CUSTOM_BAREMETAL") -> bool:
    return await watch.fitting(resource_class) == count


async def _next_build(watch: Watch, api: IronicApi) -> str:
    """Make nodes available one by one, publish a build for each, and return as text how many builds became
    active on the intended node.
    """
    ended = await watch.bus.listen(topics.BUILD_ENDED.at())
    lost = await watch.bus.listen(topics.BUILD_UNPLACEABLE.at())
    await watch.until(lambda: _most(watch, 1.0), "the nodes are known")
    await asyncio.sleep(5.0)
    pages = api.nodes(fields=("uuid", "resource_class"), provision_state="manageable")
    nodes = [node async for page in pages for node in page]
    found, waited = 0, 0.0
    for node in nodes:
        await api.set_provision_state(node["uuid"], "provide")
        async with asyncio.timeout(PATIENCE):
            while (at := watch.opened.get(node["uuid"])) is None:
                await asyncio.sleep(0.001)
            await asyncio.sleep(max(0.0, at + BEFORE - now()))
            waited += now() - at
            await watch.bus.publish(_request(node["resource_class"]))
            found += await _first_of(ended, lost) == node["uuid"]
    return (
        f"a build published {1000 * waited / len(nodes):.0f} ms after its node's event: "
        f"{found} of {len(nodes)} active on that node"
    )


async def _first_of(ended: Listener[BuildEnded], lost: Listener[BuildUnplaceable]) -> str:
    """Wait until a build ends; return the node on which its instance is active, or "" if the build failed."""
    async with asyncio.TaskGroup() as group:
        fates = [group.create_task(ended.get()), group.create_task(lost.get())]
        done, late = await asyncio.wait(fates, return_when=asyncio.FIRST_COMPLETED)
        for task in late:
            task.cancel()
    (end,) = (task.result() for task in done)
    return end.root if isinstance(end, BuildEnded) and end.status == "active" else ""


def _request(kind: str) -> BuildRequested:
    none = {f"resources:{name}": "0" for name in ("VCPU", "MEMORY_MB", "DISK_GB")}
    specs = {f"resources:CUSTOM_{kind.upper()}": "1", **none}
    ids = Clock()
    return BuildRequested(
        request=ids.uuid(), instances=(ids.uuid(),), flavor=Flavor(name="metal", extra_specs=specs)
    )


async def _stage(site: Site, work: Stage[R]) -> R:
    await prepare(site)
    with processes(site) as roles:
        async with site.api() as api, site.bus("bench") as bus, asyncio.TaskGroup() as group:
            watch = Watch(site, bus, roles)
            receivers = [watch.ironic(), watch.placement(group)] if work is not _storm else []
            tasks = [group.create_task(receiver) for receiver in receivers]
            try:
                return await work(watch, api)
            finally:
                for task in tasks:
                    task.cancel()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=200.0, help="events a second")
    parser.add_argument("--seconds", type=float, default=30.0, help="at that rate")
    parser.add_argument("--boots", type=float, default=0.0, help="of virtual machines a second, in parallel")
    parser.add_argument("--hosts", type=int, default=1000, help="for those")
    parser.add_argument("--storm", type=int, default=5000, help="nodes that become available at once")
    parser.add_argument("--builds", type=int, default=50, help="each published 50 ms after its node's event")
    parser.add_argument("--only", choices=("rate", "storm", "builds"))
    parser.add_argument(
        "--layout", default="separate", choices=("separate", "compact"), help="see `berth up`"
    )
    wanted = parser.parse_args()

    async def at_rate(watch: Watch, api: IronicApi) -> str:
        return str(await _steady(watch, wanted.seconds, wanted.boots))

    # Cleaning takes so long that all nodes are in it before the first node is done.
    stages: dict[str, tuple[dict[str, Any], Stage[str]]] = {
        "rate": ({"churn": wanted.rate, "hosts": wanted.hosts if wanted.boots else 0}, at_rate),
        "storm": ({"waiting": wanted.storm, "step_time": "constant:10"}, _storm),
        "builds": ({"alone": wanted.builds}, _next_build),
    }
    compact = wanted.layout == "compact"
    print(f"  yardstick: {of_new_servers()}", flush=True)
    for name, (more, work) in stages.items():
        if wanted.only in (None, name):
            print(f"  {_run(wanted.nodes, {**more, 'compact': compact}, work)}", flush=True)


def steady(nodes: int, rate: float, seconds: float, boots: float = 0.0, hosts: int = 0) -> SteadyNews:
    """Measure the time from Ironic's event to a claimable node at a steady rate of events, while `boots`
    virtual machines per second are built on `hosts` hypervisors.
    """

    async def work(watch: Watch, api: IronicApi) -> SteadyNews:
        return await _steady(watch, seconds, boots)

    return _run(nodes, {"churn": rate, "hosts": hosts}, work)


def _run(nodes: int, more: dict[str, Any], work: Stage[R]) -> R:
    """Run one stage on new servers; `more` are fields of Site."""
    with broker_and_database() as (amqp_url, database_url):
        site = Site(amqp_url=amqp_url, database_url=database_url, port=free_port(3), nodes=nodes, **more)
        return asyncio.run(_stage(site, work))


if __name__ == "__main__":
    main()
