"""`berth delete --wait` reports what the cell and placement confirm, and nothing more."""

import asyncio
import io

import pytest
from rich.console import Console

from berth import wiring
from berth.commands.builds import delete
from berth.commands.terminal import Cli
from berth.settings import Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.local import LocalBroker, LocalTransport
from bus.messages import BuildDeleted, BuildDeleteRequested
from bus.resources import AllocationsFound, Consumer, FindAllocations, FindProviders, Provider, ProvidersFound
from bus.vocabulary import Allocations
from bus.worker import Worker, answers, on
from tests.support.command_line import plainly
from tests.support.ids import uid

BUILD, HOST, POOL = uid(1), uid(1, "a"), uid(2, "a")


def cell_and_placement(known: bool, held: Allocations) -> Worker:
    async def take_down(asked: BuildDeleteRequested) -> BuildDeleted:
        return BuildDeleted(build=asked.build, cell=asked.cell, reply_to=asked.reply_to, known=known)

    async def allocations(asked: FindAllocations) -> AllocationsFound:
        assert asked.consumers == (BUILD,)
        consumer = Consumer(id=BUILD, generation=1, project="p", user="u", type="INSTANCE", allocations=held)
        return AllocationsFound(consumers=(consumer,) if held else (), generations={})

    async def providers(asked: FindProviders) -> ProvidersFound:
        host = Provider(id=HOST, name="h", parent=None, root=HOST, generation=1, cell="c2", host="h1")
        pool = Provider(id=POOL, name="pool", parent=None, root=POOL, generation=1)
        return ProvidersFound(
            providers=tuple(provider for provider in (host, pool) if provider.id in asked.ids)
        )

    return Worker(
        "all",
        consumes=[on(topics.BUILD_DELETE.at(cell="c1"), take_down, emits=[topics.BUILD_DELETED])],
        answers=[answers(topics.ALLOCATIONS, allocations), answers(topics.PROVIDERS, providers)],
    )


@pytest.mark.parametrize(
    ("known", "held", "says"),
    [
        (True, {}, None),
        (False, {}, "is not a build of cell c1"),
        (False, {HOST: {"VCPU": 2}}, "is not a build of cell c1: it holds 2 VCPU on h1 in cell c2"),
        (
            True,
            {HOST: {"VCPU": 2, "DISK_GB": 1}},
            "is down, and yet it holds 2 VCPU, 1 DISK_GB on h1 in cell c2",
        ),
        (
            True,
            {HOST: {"VCPU": 2}, POOL: {"DISK_GB": 1}},
            "is down, and yet it holds 2 VCPU on h1 in cell c2; 1 DISK_GB on pool",
        ),
    ],
)
async def test_a_delete_is_done_when_the_cell_knew_the_build_and_nothing_is_held_for_it(
    monkeypatch: pytest.MonkeyPatch, known: bool, held: Allocations, says: str | None
) -> None:
    broker, told = LocalBroker(), io.StringIO()
    monkeypatch.setattr(wiring, "transport", lambda settings, name: LocalTransport(broker))
    stopping = asyncio.Event()
    problem: OperationRefused | None = None
    async with Bus(LocalTransport(broker)) as bus, asyncio.TaskGroup() as group:
        group.create_task(bus.serve(cell_and_placement(known, held), stopping))
        await bus.asker(topics.PROVIDERS)(FindProviders())  # answered once it is served
        try:
            code = await plainly(
                delete(Cli(Settings(), False, Console(file=told)), BUILD, "c1", True, timeout=10.0)
            )
        except OperationRefused as refusal:
            problem = refusal
        stopping.set()
    if says is None:
        assert problem is None
        assert (code, told.getvalue()) == (0, f"{BUILD} deleted\n")
    else:
        assert (str(problem), told.getvalue()) == (f"{BUILD} {says}", "")
