"""`berth cell agent`: list, disable, enable and rehome agents of bare-metal nodes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from berth.kit import BadSetting
from berth.kit.testing import commands_connect_by, packages
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.sql.database import Database
from bus.sql.migrations import migrate
from cell_conductor.testing import cell_conductor
from features.shared_nodes.lease import NodeLease
from features.shared_nodes.messages import LEASE, REPORT_NODES
from tests.support.buses import LOCALLY, Connect, serving
from tests.support.command_line import CommandLine
from tests.support.conductor_builders import Books
from tests.support.feature_parts import conductor_parts
from tests.support.ids import uid
from tests.support.waiting import until

pytestmark = LOCALLY

NODES = tuple(uid(number, "c") for number in range(10))


class AgentCommand(CommandLine):
    """Runs commands of `berth cell agent` in a cell where two agents share ten nodes."""

    def __init__(self, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__("cell agent", patch, capsys)

    async def shares(self) -> dict[str, tuple[bool, int]]:
        found: dict[str, Any] = {}

        async def dealt() -> bool:
            found.update({one["agent"]: one for one in await self.json("list", "--cell", "c1")})
            return sum(one["free"] for one in found.values()) == 10 and not any(
                one["leaving"] for one in found.values()
            )

        await until(dealt)
        return {name: (one["disabled"], one["free"]) for name, one in found.items()}


@asynccontextmanager
async def an_agent(bus: Bus, name: str) -> AsyncIterator[None]:
    async def nodes() -> tuple[str, ...]:
        return NODES

    lease = NodeLease(name, "metal", "c1", bus.asker(LEASE), Clock(), bus.asker(REPORT_NODES), nodes)
    async with asyncio.TaskGroup() as group:
        asking = group.create_task(lease.run())
        yield
        asking.cancel()


@pytest.fixture
async def agent(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[AgentCommand]:
    database, books = Database("sqlite+aiosqlite://"), Books()
    await migrate(database, *packages("conductor"))
    asks = books.claim_many, books.release_many
    conductor = cell_conductor("c1", database, *asks, parts=conductor_parts("c1"))
    async with serving(connect, conductor) as bus, an_agent(bus, "one"), an_agent(bus, "two"):
        commands_connect_by(connect, monkeypatch)
        yield AgentCommand(monkeypatch, capsys)
    await database.close()


async def test_a_disabled_agent_loses_its_free_nodes_until_it_is_enabled(agent: AgentCommand) -> None:
    assert await agent.shares() == {"one": (False, 5), "two": (False, 5)}
    assert "one in cell c1: gets no further nodes" in await agent("disable", "one")
    assert await agent.shares() == {"one": (True, 0), "two": (False, 10)}
    assert await agent("enable", "one") == "one in cell c1: gets nodes again\n"
    await until(lambda: _even(agent))
    shown = (await agent("list", "--cell", "c1")).splitlines()
    assert shown[0].split() == ["agent", "cell", "state", "lease", "epoch", "free", "occupied", "leaving"]
    assert shown[1].split()[:3] == ["one", "c1", "alive"]


async def test_a_dry_run_says_how_many_nodes_would_go_to_other_agents(agent: AgentCommand) -> None:
    shares = await agent.shares()
    would = await agent("disable", "one", "--dry-run")
    assert would == "one in cell c1: 5 nodes would go to other agents\n"
    for words, error, says in WRONG[:4]:
        with pytest.raises(error) as refused:
            await agent(*words, "--dry-run")
        assert says in str(refused.value), words
    assert await agent.shares() == shares


async def _even(agent: AgentCommand) -> bool:
    return {share for _, share in (await agent.shares()).values()} == {5}


WRONG: list[tuple[tuple[str, ...], type[Exception], str]] = [
    (("rehome", "one"), OperationRefused, "disable it first"),
    (("rehome", "three"), OperationRefused, "no agent 'three' shares bare metal; there are: one, two"),
    (("disable", "three", "--cell", "c1"), OperationRefused, "there are: one, two"),
    (("rehome", "no word"), BadSetting, "agent: "),
    (("rehome", "one", "--node", uid(99, "c")), OperationRefused, "is no node of one's"),
    (("rehome", "one", "--node", NODES[0], "--to", "x"), OperationRefused, "there is no agent 'x'"),
    (("rehome", "one", "--node", NODES[0], "--to", "one"), OperationRefused, "one has them"),
    (("list", "--cell", "c9"), BadSetting, "--cell 'c9': cells are c1"),
    (("list", "--cell", "c2"), OperationRefused, "not shown, for it did not answer: cell c2"),
]


async def test_impossible_agent_commands_are_refused_with_the_reason(agent: AgentCommand) -> None:
    await agent.shares()
    for words, error, says in WRONG:
        with pytest.raises(error) as refused:
            await agent(*words)
        assert says in str(refused.value), words
