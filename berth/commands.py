"""What the commands do, apart from reading their flags."""

import asyncio
import json
import sys
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from berth import topology, wiring
from berth.audit import Audit
from berth.audit import audit as audit_databases
from berth.embedded import embedded
from berth.services import Supervisor, run_worker, stop_on_signals
from berth.settings import BadSetting, Settings
from bus import codec, topics
from bus.clock import Clock, monotonic
from bus.delivery.runner import Bus
from bus.errors import TooBig, Unavailable, Undecodable
from bus.messages import (
    BuildDeleteRequested,
    BuildEnded,
    BuildRequested,
    BuildUnplaceable,
    FindCandidates,
    Message,
    NodeChanged,
)
from bus.sql.migrations import migrate
from bus.vocabulary import Flavor, ResourceGroup

M = TypeVar("M", bound=Message)

_READY_SECONDS = 60.0
METAL = {
    "resources:CUSTOM_BAREMETAL": "1",
    "resources:VCPU": "0",
    "resources:MEMORY_MB": "0",
    "resources:DISK_GB": "0",
}


class Refusal(Exception):
    """The command will not do that; the text says why."""


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for problem in group.exceptions:
        if isinstance(problem, BaseExceptionGroup):
            yield from leaves(problem)
        else:
            yield problem


# Running


async def up(settings: Settings, say: Console) -> int:
    stopping = asyncio.Event()
    if settings.embedded:
        async with embedded(settings, door=True) as house:
            stop_on_signals(stopping)
            await ready(house.bus, settings)
            say.print(
                f"berth is up: {settings.compute.hosts} simulated hosts in cells "
                f"{', '.join(settings.cell_names)}; state in {settings.database.state_dir}. Ctrl-C stops it."
            )
            await stopping.wait()
        return 0
    await migrate_all(settings, say)
    stop_on_signals(stopping)
    supervisor = Supervisor(settings, say.print)
    async with asyncio.TaskGroup() as group:
        group.create_task(supervisor.run(stopping))
        async with Bus(wiring.transport(settings, "up")) as bus:
            await _ready_or_stopped(bus, settings, stopping)
            if not stopping.is_set():
                for name, pid in supervisor.processes().items():
                    say.print(f"  {name}: process {pid}")
                say.print("berth is up. Ctrl-C stops it.")
    return 0


async def run(settings: Settings, worker: str, cell: str, alone: bool) -> int:
    role = wiring.role(worker, cell, settings)
    if alone and not (role.worker == "placement" and settings.placement.http):
        raise Refusal("with a bus of its own only placement is of use, and only with --http")
    if settings.embedded and not alone:
        raise Refusal(
            "a worker of its own needs a bus other processes reach: set BERTH_AMQP_URL and "
            "BERTH_DATABASE_URL, or use `berth up`, which runs everything in one process"
        )
    way = wiring.alone() if alone else wiring.transport(settings, str(role), role.cell)
    await run_worker(role, settings, way)
    return 0


async def ready(bus: Bus, settings: Settings, share: float = 1.0) -> int:
    """Returns when placement knows the simulated hosts: how many it knows."""
    find = bus.asker(topics.FIND_CANDIDATES, timeout=2.0)
    question = FindCandidates(groups=(ResourceGroup(resources={"VCPU": 1}),), limit=1)
    deadline = monotonic() + _READY_SECONDS
    while monotonic() < deadline:
        try:
            found = await find(question)
            if found.considered >= settings.compute.hosts * share:
                return found.considered
        except Unavailable:
            pass
        await asyncio.sleep(0.05)
    raise Unavailable(
        f"after {_READY_SECONDS:.0f} s placement still does not know {settings.compute.hosts} hosts"
    )


async def _ready_or_stopped(bus: Bus, settings: Settings, stopping: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(stopping.wait())
        getting = group.create_task(ready(bus, settings))
        await asyncio.wait((waiting, getting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if stopping.is_set():
            getting.cancel()


# Asking


def boot_request(
    vcpus: int,
    memory_mb: int,
    disk_gb: int,
    flavor: str,
    extra_specs: Sequence[str],
    count: int,
    zone: str,
    cell: str,
) -> BuildRequested:
    clock = Clock()
    specs = dict(METAL) if flavor == "metal" else {}
    for pair in extra_specs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise BadSetting(f"--extra-spec takes KEY=VALUE, not {pair!r}")
        specs[key] = value
    return BuildRequested(
        request=clock.uuid(),
        instances=tuple(clock.uuid() for _ in range(count)),
        flavor=Flavor(
            name=flavor or "custom", vcpus=vcpus, memory_mb=memory_mb, disk_gb=disk_gb, extra_specs=specs
        ),
        zone=zone,
        cell=cell,
    )


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
        agent=wiring.metal_agent(settings, cell),
        resource_class=resource_class,
        provision_state=provision_state,
        power_state=power_state,
        maintenance=maintenance,
        traits=tuple(traits),
        deleted=deleted,
    )


def checked(message: M) -> M:
    """The message as everybody else will read it, or a sentence about the field that is wrong."""
    try:
        return codec.decode(type(message), codec.encode(message))
    except (Undecodable, TooBig) as problem:
        raise BadSetting(str(problem)) from None


async def publish(settings: Settings, message: Message, say: Console) -> int:
    message = checked(message)
    async with Bus(wiring.transport(settings, "client")) as bus:
        await bus.publish(message)
    say.print(f"published on {topics.TOPIC_OF[type(message)].key(message)}")
    if isinstance(message, NodeChanged):
        say.print(f"node {message.node}")
    return 0


async def boot(
    settings: Settings, request: BuildRequested, wait: bool, timeout: float, as_json: bool, say: Console
) -> int:
    name = f"boot-{request.request[:8]}"
    if wait:
        request = msgspec.structs.replace(request, reply_to=name)
    request = checked(request)
    async with Bus(wiring.transport(settings, "boot")) as bus:
        ended = await bus.listen(topics.BUILD_ENDED.at(reply_to=name))
        unplaceable = await bus.listen(topics.BUILD_UNPLACEABLE.at(reply_to=name))
        await bus.publish(request)
        if not wait:
            for instance in request.instances:
                if as_json:
                    _write_json({"build": instance, "request": request.request})
                else:
                    say.print(f"asked for {instance}")
            return 0
        active, open_ = 0, set(request.instances)
        try:
            async with asyncio.timeout(timeout), asyncio.TaskGroup() as group:
                no_host = group.create_task(unplaceable.get())
                while open_:
                    next_end = group.create_task(ended.get())
                    await asyncio.wait((no_host, next_end), return_when=asyncio.FIRST_COMPLETED)
                    if no_host.done():
                        next_end.cancel()
                        _tell_unplaceable(no_host.result(), as_json, say)
                        return 1
                    said = next_end.result()
                    if said.build in open_:
                        open_.discard(said.build)
                        active += said.status == "active"
                        _tell_ended(said, as_json, say)
                no_host.cancel()
        except TimeoutError:
            raise Refusal(
                f"not waiting any longer: {', '.join(sorted(open_))} did not end within {timeout:g} s"
            ) from None
    return 0 if active == len(request.instances) else 1


def _tell_ended(said: BuildEnded, as_json: bool, say: Console) -> None:
    if as_json:
        _write_json(said)
        return
    where = f"on {said.host} in cell {said.cell}" if said.status == "active" else said.reason
    say.print(said.build, coloured(said.status), escape(where))
    for number, attempt in enumerate(said.attempts, 1):
        if attempt.outcome != "built":
            say.print(f"  {number}. {attempt.host}: {attempt.outcome}: {attempt.cause}", markup=False)


def _tell_unplaceable(said: BuildUnplaceable, as_json: bool, say: Console) -> None:
    if as_json:
        _write_json(said)
        return
    say.print(
        f"[red]no host[/red]: {escape(said.reason)}"
    )  # which names what was removed, and who came close


def coloured(status: str) -> str:
    colour = "green" if status == "active" else "red"
    return f"[{colour}]{status}[/{colour}]"


def _write_json(value: Any) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


async def delete(settings: Settings, id_: str, cell: str, wait: bool, timeout: float, say: Console) -> int:
    name = f"delete-{Clock().uuid()[:8]}"
    try:
        id_ = str(uuid.UUID(id_))
    except ValueError:
        raise BadSetting(f"{id_!r} is not the uuid of a build") from None
    request = checked(BuildDeleteRequested(build=id_, cell=cell, reply_to=name))
    async with Bus(wiring.transport(settings, "delete")) as bus:
        deleted = await bus.listen(topics.BUILD_DELETED.at(reply_to=name))
        await bus.publish(request)
        if wait:
            try:
                async with asyncio.timeout(timeout):
                    await deleted.get()
            except TimeoutError:
                raise Refusal(
                    f"not waiting any longer: {id_} was not taken down within {timeout:g} s"
                ) from None
    say.print(f"{id_} {'deleted' if wait else 'will be deleted'}")
    return 0


# Checking


async def audit(settings: Settings, settled: bool, as_json: bool, say: Console) -> int:
    found = await audit_databases(settings, settled=settled)
    if as_json:
        sys.stdout.write(
            json.dumps(
                {"clean": found.clean, "breaches": found.breaches, "consumers": found.consumers,
                 "builds": found.builds}, indent=2) + "\n"
        )  # fmt: skip
    else:
        show_audit(found, say)
    return 0 if found.clean else 1


def show_audit(found: Audit, say: Console) -> None:
    builds = ", ".join(f"{count} {status}" for status, count in sorted(found.builds.items())) or "none"
    verdict = "[green]clean[/green]" if found.clean else f"[red]{len(found.breaches)} breaches[/red]"
    say.print(f"audit: {verdict}; {found.consumers} consumers hold resources; builds: {builds}")
    for breach in found.breaches[:50]:
        say.print(f"  {breach}", style="red", markup=False)


async def migrate_all(settings: Settings, say: Console) -> int:
    """How many migrations were applied, each with a line."""
    made = 0
    for role, package in wiring.stores(settings).items():
        database = wiring.database(settings, role)
        try:
            applied = await migrate(database, package)
        finally:
            await database.close()
        for name in applied:
            say.print(f"{wiring.store_of(role)}: applied {name}")
        made += len(applied)
    return made


async def migrate_and_say(settings: Settings, say: Console) -> int:
    if not await migrate_all(settings, say):
        say.print("every database is up to date")
    return 0


def show_topology(as_markdown: bool, say: Console) -> None:
    workers = wiring.all_workers_without_a_bus()
    if as_markdown:
        sys.stdout.write(topology.markdown(workers))
        return
    table = Table("topic or query", "message", "says", "from", "to", box=None, pad_edge=False)
    for row in topology.table(workers):
        table.add_row(*map(escape, row))
    say.print(table, soft_wrap=False)


def asyncapi_document() -> dict[str, Any]:
    return topology.asyncapi(wiring.all_workers_without_a_bus())
