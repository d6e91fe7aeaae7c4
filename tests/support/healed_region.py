"""A region in files with an instance that was moved, for `berth audit heal`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from berth import composition
from berth.commands.run import migrate_all
from berth.settings import Settings
from bus.claims import holder_consumer
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.guests import GuestsAsked, GuestsReported, ReportedGuest
from bus.local import LocalBroker, LocalTransport
from bus.messages import AgentReported, DestroyOrdered
from bus.sql.database import Database
from bus.topics import AGENT_ASKED, AGENT_DESTROY, AGENT_GUESTS, AGENT_REPORT, CELL_CLAIM, CELL_RELEASE
from bus.worker import Worker, on
from cell_conductor import cell_conductor
from tests.support.buses import serving
from tests.support.conductor_builders import an_agent_report
from tests.support.databases import insert_build, sql
from tests.support.feature_parts import conductor_parts
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_report, on_hosts
from tests.support.placement_calls import must_take, silent_placement

BUILD = 1
KEEPER = holder_consumer(uid(BUILD), 1)
OLD = Clock(now=lambda: 1000.0, monotonic=lambda: 1000.0)  # earlier than every audit


@asynccontextmanager
async def region_with_moved_instance(tmp_path: Path, patch: pytest.MonkeyPatch) -> AsyncIterator[Settings]:
    """Yield the settings of a berth with an instance that a scheduler's claim moved from host 1 to host 2."""
    settings = Settings().having(state_dir=str(tmp_path), cells=("c1",))
    patch.setenv("BERTH_STATE_DIR", str(tmp_path))
    patch.setenv("BERTH_CELLS", "c1")
    await migrate_all(settings, Console(quiet=True))
    broker = LocalBroker()
    patch.setattr(composition, "transport", lambda *_, **__: LocalTransport(broker))
    async with a_placement(f"sqlite+aiosqlite:///{tmp_path}/placement.db", OLD) as placement:
        await placement.reports.report_many([a_report(1), a_report(2)])
        await must_take(placement, a_claim(BUILD, on_hosts(1)))
        move = replace(a_claim(BUILD, on_hosts(2)), generation=1, keep=KEEPER, begins=uid(1, "e"))
        await must_take(placement, move)
        async with serving(lambda: LocalTransport(broker), silent_placement(placement)):
            yield settings


def stands(settings: Settings, status: str, attempt: int, host: int = 2, leftovers: str = "") -> None:
    insert_build(settings, "c1", BUILD, status, host)
    where = "UPDATE builds SET attempt = ?, leftovers = ? WHERE id = ?"
    sql(settings, "cell_c1", where, attempt, leftovers, uid(BUILD))


@asynccontextmanager
async def a_cell_with(settings: Settings, *guests: ReportedGuest) -> AsyncIterator[None]:
    """Run a conductor of the cell, and two agents: agent-1 without guests, agent-2 with `guests`."""
    database = Database(f"sqlite+aiosqlite:///{settings.database.state_dir}/cell_c1.db")
    async with Bus(composition.transport(settings, "test")) as bus:
        claim_many, release_many = bus.asker_of_many(CELL_CLAIM), bus.asker_of_many(CELL_RELEASE)
        conductor = cell_conductor("c1", database, claim_many, release_many, parts=conductor_parts("c1"))
        agents = an_agent_with("agent-1"), an_agent_with("agent-2", *guests)
        async with serving(lambda: composition.transport(settings, "test"), conductor, *agents):
            yield
    await database.close()


def an_agent_with(agent: str, *guests: ReportedGuest) -> Worker:
    async def answer(asked: GuestsAsked) -> GuestsReported:
        fields = {name: getattr(asked, name) for name in ("cell", "agent", "builds", "reply_to", "after")}
        return GuestsReported(**fields, guests=guests)

    async def destroy(order: DestroyOrdered) -> AgentReported:
        return an_agent_report(order, "destroyed")

    consumes = [
        on(AGENT_ASKED.at(cell="c1", agent=agent), answer, emits=[AGENT_GUESTS]),
        on(AGENT_DESTROY.at(cell="c1", agent=agent), destroy, emits=[AGENT_REPORT]),
    ]
    return Worker(f"agent.c1.{agent}", consumes=consumes)
