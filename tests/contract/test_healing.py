"""Lost allocations of a build are claimed again by an ordinary claim; a concurrent change wins."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from berth import composition
from berth.commands import audit as audit_command
from berth.commands.run import migrate_all
from berth.databases import packages
from berth.operations.allocation_repairs import Mending
from berth.operations.audit import audit
from berth.operations.guest_differences import CellRecords, GuestComparison, differences
from berth.operations.guest_repairs import RetiredChoice
from berth.operations.wrong_allocations import Misheld, misheld
from berth.settings import Settings
from bus.claims import Choice, Claimed, Retired, holder_consumer
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.guests import GuestsAsked, GuestsReported, ReportedGuest
from bus.local import LocalBroker, LocalTransport
from bus.messages import AgentReported, BuildOrdered, BuildPlaced, DestroyOrdered, Selection
from bus.queries import BuildStands, FindBuilds
from bus.requests import BuildSpec, Flavor
from bus.resources import FindAllocations
from bus.sql.database import Database
from bus.sql.migrations import migrate
from bus.topics import (
    AGENT_ASKED,
    AGENT_BUILD,
    AGENT_DESTROY,
    AGENT_GUESTS,
    AGENT_REPORT,
    CELL_CLAIM,
    CELL_RELEASE,
    CLAIM,
    FIND_BUILDS,
)
from bus.worker import Worker, on
from cell_conductor import cell_conductor, places
from cell_conductor.core.build import Build
from cell_conductor.store import BuildStore
from features.moves.core.move import BuildMove, encode_move
from features.moves.messages import SHELVED
from features.moves.tests.support.conductor_moves import a_move
from placement_worker import Placement
from placement_worker.store.audit import holdings, retired_as, trees_of_consumers
from placement_worker.store.audit import retired as stored_retired
from tests.support.buses import serving
from tests.support.command_line import CommandLine
from tests.support.conductor_builders import COURSES, a_placed, an_agent_report
from tests.support.databases import insert_build, sql
from tests.support.feature_parts import conductor_parts
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_release, a_report, an_order, on_hosts
from tests.support.placement_calls import claim, must_take, report, silent_placement
from tests.support.waiting import until

WHO = uid(7)
HERE, AGENT = uid(1, "a"), "agent-1"
CHOSEN = Selection(root=HERE, host="host-1", agent=AGENT, choice=Choice(on_hosts(1, VCPU=2)))
SPEC = BuildSpec(flavor=Flavor(name="small", vcpus=2), project="p1", user="u1")
PLACED = BuildPlaced(build=WHO, request=uid(1, "d"), cell="c1", chosen=CHOSEN, generation=1, spec=SPEC)


@dataclass
class WitnessedCell:
    bus: Bus
    placement: Placement
    database: Database
    guests: list[ReportedGuest]
    strays: list[ReportedGuest]  # guests that agent-2 reports

    async def repairs(self, *known: str, retired: RetiredChoice = "") -> list[str]:
        """Compare the agents' guests with these builds, and return the results of the repairs."""
        books = {("c1", AGENT): self.guests, ("c1", "agent-2"): self.strays}
        stood = await places(self.database)
        unknown = {guest.build for some in books.values() for guest in some}.difference(known)
        found = GuestComparison(
            differences(books, CellRecords(known, stood, ())),
            books,
            retired=await retired_as(self.placement.database, unknown),
        )
        mending = Mending(self.bus).guests
        judged = await mending.judged(found, retired)
        return [repair.why_not or await mending.mend(repair) for repair in judged]

    async def stands(self, build: str = WHO) -> BuildStands | None:
        found = (await self.bus.asker(FIND_BUILDS)(FindBuilds(cell="c1", builds=(build,)))).builds
        return found[0] if found else None

    async def finds(self) -> list[Misheld]:
        store = self.placement.database
        trees, held = await trees_of_consumers(store), await holdings(store)
        return [*misheld(await places(self.database), trees, held, ())]

    async def heals(self) -> list[str]:
        mending = Mending(self.bus)
        mends = await mending.judged(await self.finds())
        return [mend.why_not or await mending.mend(mend) for mend in mends]

    async def held(self) -> Any:
        found = await self.placement.lookups.allocations(FindAllocations(consumers=(WHO,)))
        return found.consumers[0].allocations if found.consumers else {}

    async def loses(self, generation: int = 1) -> None:
        await self.placement.claims.release_many([a_release(7, generation)])

    async def takes(self, held: Any, generation: int | None) -> None:
        [got] = await claim(self.placement, an_order(a_claim(7, held, generation=generation)))
        assert isinstance(got, Claimed), got


@pytest.fixture
async def cell(url: str, placement: Placement) -> AsyncIterator[WitnessedCell]:
    elsewhere = "sqlite+aiosqlite://" if url.startswith("sqlite") else url
    database = Database(elsewhere, **({"namespace": "cell"} if elsewhere == url else {"inline": True}))
    await migrate(database, *packages("conductor"))
    assert await report(placement, a_report(1), a_report(2)) == ["", ""]
    guests = [ReportedGuest(WHO, 1, HERE, "running", on_hosts(1, VCPU=2))]
    strays: list[ReportedGuest] = []

    async def build(order: BuildOrdered) -> AgentReported:
        return an_agent_report(order, "built")

    async def tell(asked: GuestsAsked) -> GuestsReported:
        there = tuple(guests) if asked.agent == AGENT else tuple(strays)
        return GuestsReported(
            cell=asked.cell, agent=asked.agent, builds=asked.builds, guests=there, reply_to=asked.reply_to
        )

    async def destroy(order: DestroyOrdered) -> AgentReported:
        listed = guests if order.agent == AGENT else strays
        covered = range(order.above + 1, order.attempt + 1)
        listed[:] = [each for each in listed if each.build != order.build or each.attempt not in covered]
        return an_agent_report(order, "destroyed")

    agents = [
        Worker(f"agent.c1.{name}", consumes=[
            on(AGENT_BUILD.at(cell="c1", agent=name), build, emits=[AGENT_REPORT]),
            on(AGENT_ASKED.at(cell="c1", agent=name), tell, emits=[AGENT_GUESTS]),
            on(AGENT_DESTROY.at(cell="c1", agent=name), destroy, emits=[AGENT_REPORT]),
        ]) for name in (AGENT, "agent-2")
    ]  # fmt: skip

    broker = LocalBroker()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(Bus(LocalTransport(broker)))
        conductor = cell_conductor(
            "c1",
            database,
            bus.asker_of_many(CELL_CLAIM),
            bus.asker_of_many(CELL_RELEASE),
            parts=conductor_parts("c1"),
        )
        await stack.enter_async_context(
            serving(lambda: LocalTransport(broker), silent_placement(placement), conductor, *agents)
        )
        one = WitnessedCell(bus, placement, database, guests, strays)
        await one.takes(on_hosts(1, VCPU=2), None)
        await bus.publish(PLACED)

        async def active() -> bool:
            found = (await bus.asker(FIND_BUILDS)(FindBuilds(cell="c1", builds=(WHO,)))).builds
            return [each.status for each in found] == ["active"]

        await until(active)
        yield one
    await database.close()


async def test_lost_allocations_are_claimed_again_and_the_cell_is_informed(cell: WitnessedCell) -> None:
    assert await cell.finds() == []
    await cell.loses()
    assert [find.wrong for find in await cell.finds()] == ["missing"]
    assert await cell.heals() == [""]
    assert (await cell.finds(), await cell.held()) == ([], on_hosts(1, VCPU=2))


@pytest.mark.parametrize("held", [on_hosts(2, VCPU=2), on_hosts(1, VCPU=3)])
async def test_allocations_that_cell_and_agent_contradict_are_claimed_again(
    cell: WitnessedCell, held: Any
) -> None:
    await cell.takes(held, 1)
    assert await cell.heals() == [""]
    assert (await cell.finds(), await cell.held()) == ([], on_hosts(1, VCPU=2))


async def test_allocations_are_not_healed_without_the_agents_confirmation(cell: WitnessedCell) -> None:
    await cell.takes(on_hosts(2, VCPU=2), 1)
    cell.guests.clear()
    assert await cell.heals() == ["agent agent-1 has no guest of its attempt 1 on host-1"]
    assert await cell.held() == on_hosts(2, VCPU=2)


async def test_allocations_changed_after_the_check_are_not_healed(cell: WitnessedCell) -> None:
    await cell.takes(on_hosts(1, VCPU=3), 1)
    mending = Mending(cell.bus)
    [mend] = await mending.judged(await cell.finds())
    await cell.takes(on_hosts(1, VCPU=4), 2)
    assert await mending.mend(mend) == "another client has claimed or released: try again"
    assert await cell.held() == on_hosts(1, VCPU=4)


async def test_an_instance_that_ended_after_the_check_is_not_healed(cell: WitnessedCell) -> None:
    await cell.loses()
    mending = Mending(cell.bus)
    [mend] = await mending.judged(await cell.finds())
    await cell.placement.claims.release_many([a_release(7, None, "deleted")])
    assert await mending.mend(mend) == "it has ended for placement (deleted)"
    assert await cell.held() == {}


async def test_a_build_that_its_cell_changed_after_the_check_is_not_healed(cell: WitnessedCell) -> None:
    await cell.loses()
    [one] = await cell.finds()
    stale = Misheld(one.wrong, replace(one.place, attempt=2), one.generation, one.held, one.sentence)
    [mend] = await Mending(cell.bus).judged([stale])
    assert mend.why_not == "it is being changed: try again"


LOST = uid(8)


async def test_the_only_guest_of_a_lost_build_is_adopted_with_its_attempt(cell: WitnessedCell) -> None:
    cell.guests.append(ReportedGuest(LOST, 2, HERE, "running", on_hosts(1, VCPU=1)))
    assert await cell.repairs(WHO) == [""]
    stands = await cell.stands(LOST)
    assert stands is not None and stands.chosen is not None
    assert (stands.status, stands.attempt, stands.chosen.root) == ("active", 2, HERE)
    assert (await holdings(cell.placement.database))[LOST][1] == on_hosts(1, VCPU=1)
    assert [*await cell.finds(), *await cell.repairs(WHO, LOST)] == []


async def test_a_guest_is_adopted_with_the_allocations_that_placement_still_has(cell: WitnessedCell) -> None:
    held = on_hosts(1, VCPU=1)
    [claimed] = await claim(cell.placement, an_order(a_claim(8, held)))
    assert isinstance(claimed, Claimed)
    cell.guests.append(ReportedGuest(LOST, 1, HERE, "running", held))
    assert await cell.repairs(WHO) == [""]
    assert await cell.finds() == [] and await cell.stands(LOST) is not None


async def test_a_guest_that_does_not_fit_its_host_is_not_adopted(cell: WitnessedCell) -> None:
    cell.guests.append(ReportedGuest(LOST, 1, HERE, "running", on_hosts(1, VCPU=1000)))
    [why] = await cell.repairs(WHO)
    assert (
        why.startswith("its resources cannot be claimed: it does not fit: ")
        and await cell.stands(LOST) is None
    )


async def retire(cell: WitnessedCell, why: str, *, unplaceable: bool) -> None:
    release = replace(a_release(8, None, why), unplaceable=unplaceable)
    await cell.placement.claims.release_many([release])
    cell.guests.append(ReportedGuest(LOST, 2, HERE, "running", on_hosts(1, VCPU=1)))


async def test_a_guest_whose_id_was_retired_as_unplaceable_is_listed_until_the_operator_chooses(
    cell: WitnessedCell,
) -> None:
    await retire(cell, "no host fits", unplaceable=True)
    choices = "--retired adopt keeps the guest, --retired destroy destroys it"
    assert await cell.repairs(WHO) == [f"for placement it has ended (no host fits): {choices}"]
    assert await cell.stands(LOST) is None and len(cell.guests) == 2


async def test_a_guest_whose_id_was_retired_as_unplaceable_is_adopted_if_the_operator_chooses_so(
    cell: WitnessedCell,
) -> None:
    await retire(cell, "no host fits", unplaceable=True)
    assert await cell.repairs(WHO, retired="adopt") == [""]
    stands = await cell.stands(LOST)
    assert stands is not None and (stands.status, stands.attempt) == ("active", 2)
    assert (await holdings(cell.placement.database))[LOST][1] == on_hosts(1, VCPU=1)
    assert LOST not in await stored_retired(cell.placement.database)
    assert [*await cell.finds(), *await cell.repairs(WHO, LOST)] == []


async def test_a_guest_whose_id_was_retired_is_destroyed_if_the_operator_chooses_so(
    cell: WitnessedCell,
) -> None:
    await retire(cell, "no host fits", unplaceable=True)
    assert await cell.repairs(WHO, retired="destroy") == [""]
    assert await cell.stands(LOST) is None and len(cell.guests) == 1
    assert [*await cell.finds(), *await cell.repairs(WHO)] == []


async def test_a_guest_whose_build_was_deleted_is_not_adopted(cell: WitnessedCell) -> None:
    await retire(cell, "deleted", unplaceable=False)
    [why] = await cell.repairs(WHO, retired="adopt")
    assert why.endswith("it can only be destroyed (--retired destroy)")
    assert await cell.repairs(WHO) == ["for placement it has ended (deleted): --retired destroy destroys it"]


async def test_a_late_report_of_an_earlier_attempt_is_no_contradiction(
    cell: WitnessedCell, caplog: pytest.LogCaptureFixture
) -> None:
    cell.guests.append(ReportedGuest(LOST, 2, HERE, "running", on_hosts(1, VCPU=1)))
    assert await cell.repairs(WHO) == [""]
    failed = AgentReported(
        build=LOST, attempt=1, cell="c1", agent=AGENT, root=HERE, host="host-1", outcome="failed"
    )
    await cell.bus.publish(failed)
    await cell.bus.publish(replace(failed, attempt=2))
    await until(lambda: "reports its attempt 2" in caplog.text)
    assert "reports its attempt 1" not in caplog.text


async def test_a_guest_of_a_build_that_runs_on_another_host_is_destroyed(cell: WitnessedCell) -> None:
    cell.strays.append(ReportedGuest(WHO, 1, uid(2, "a"), "running", on_hosts(2, VCPU=2)))
    assert await cell.repairs(WHO) == [""]
    assert cell.strays == [] and len(cell.guests) == 1
    stands = await cell.stands()
    assert stands is not None and stands.status == "active"


async def test_a_build_without_a_guest_at_any_agent_is_deleted(cell: WitnessedCell) -> None:
    cell.guests.clear()
    assert await cell.repairs(WHO) == [""]
    stands = await cell.stands()
    assert stands is not None and stands.status == "deleted" and await cell.held() == {}


BUILD = 1
KEEPER = holder_consumer(uid(BUILD), 1)
TO_A_BERTH = composition.transport
OLD = Clock(now=lambda: 1000.0, monotonic=lambda: 1000.0)  # earlier than every audit


@pytest.fixture
async def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Settings]:
    """Yield the settings of a berth with an instance that a scheduler's claim moved from host 1 to host 2."""
    settings = Settings().having(state_dir=str(tmp_path), cells=("c1",))
    monkeypatch.setenv("BERTH_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("BERTH_CELLS", "c1")
    await migrate_all(settings, Console(quiet=True))
    broker = LocalBroker()
    monkeypatch.setattr(composition, "transport", lambda *_, **__: LocalTransport(broker))
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


@pytest.fixture
def berth(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Awaitable[str]]:
    return CommandLine("heal", audit_command, monkeypatch, capsys)


@pytest.mark.parametrize(
    ("status", "leftovers"),
    [("moving", ""), ("verifying", ""), ("active", "[[1,0,9.0]]"), ("active", "[[4,0,9.0,false,0,1]]")],
)
async def test_allocations_held_for_a_move_are_a_note(
    settings: Settings, berth: Callable[..., Awaitable[str]], status: str, leftovers: str
) -> None:
    stands(settings, status, 2, leftovers=leftovers)
    found = await audit(settings)
    assert (found.breaches, found.types) == ([], {"INSTANCE": 1, "MIGRATION": 1})
    assert found.notes == [f"{KEEPER}: holds the host that {uid(BUILD)} has moved from"]
    assert await berth("--yes") == "nothing is wrong\n"
    assert (await audit(settings)).consumers == 2


async def test_leaked_holder_allocations_are_released_when_the_cell_confirms(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    stands(settings, "active", 2)
    why = "which is active, and of that attempt nothing is left"
    leak = f"{KEEPER}: holds resources of attempt 1 of {uid(BUILD)}, {why}"
    assert (await audit(settings)).breaches == [leak]
    assert (await berth(ends=1)).splitlines() == [
        f"would be released: {leak}",
        "`berth heal --yes` repairs confirmed differences",
    ]
    assert (await audit(settings)).consumers == 2
    assert await berth("--yes") == f"released: {leak}\n"
    assert ((await audit(settings)).breaches, (await audit(settings)).consumers) == ([], 1)


async def test_unconfirmed_differences_are_listed_and_not_healed(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    stands(settings, "active", 1, host=1)
    told = (await berth("--yes", ends=1)).splitlines()
    assert all(line.startswith("for you to judge: ") for line in told)
    assert any("a move of it began that its cell does not know" in line for line in told)
    assert (await audit(settings)).consumers == 2


async def test_an_instance_that_waits_for_confirmation_holds_its_destination(settings: Settings) -> None:
    stands(settings, "verifying", 2, host=1)
    a1, a2 = uid(1, "a"), uid(2, "a")
    assert (await audit(settings)).breaches == [
        f"{uid(BUILD)}: verifying on {a1}, but holds resources of {a2}"
    ]


async def add_build(settings: Settings, build: Build) -> None:
    database = Database(f"sqlite+aiosqlite:///{settings.database.state_dir}/cell_c1.db")
    async with database.write() as tx:
        adding, preceding = BuildStore(COURSES).adding([build], 1000.0)
        await adding(tx, preceding)
    await database.close()


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


async def test_after_its_deletion_was_lost_a_build_without_guest_and_allocations_is_deleted(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    await add_build(
        settings, Build(id=WHO, cell="c1", status="active", placed=PLACED, attempt=1, end="active")
    )
    stands(settings, "moving", 2)
    sentences = (
        f"{WHO}: active on host-1 in cell c1, and agent agent-1 has no guest of its attempt 1 there",
        f"{WHO}: active on {HERE} in cell c1, and holds nothing",
    )
    async with a_cell_with(settings):
        would = [f"would be deleted: {sentence}" for sentence in sentences]
        assert (await berth(ends=1)).splitlines()[:-1] == would
        assert (await berth("--yes")).splitlines() == [f"deleted: {sentence}" for sentence in sentences]
        assert await berth() == "nothing is wrong\n"


@pytest.mark.parametrize("status", ["deleted", "error"])
async def test_if_its_release_was_lost_the_allocations_of_an_ended_build_are_released(
    settings: Settings, berth: Callable[..., Awaitable[str]], status: str
) -> None:
    stands(settings, status, 2, leftovers="[[1,0,9.0]]")
    breach = f"{uid(BUILD)}: ended as {status} in cell c1, and holds resources"
    assert (await audit(settings)).breaches == [breach]
    assert await berth("--yes", ends=1) == (
        f"for you to judge: {breach}; agent agent-1, agent-2 did not answer and may have its guest\n"
    )
    async with a_cell_with(settings):
        assert await berth("--yes") == f"released: {breach}\n"
        assert await berth() == "nothing is wrong\n"


async def test_allocations_of_a_deleted_build_stay_while_a_clean_up_waits_for_one_of_its_guests(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    stands(settings, "deleted", 2, leftovers="[[1,0,9.0]]")
    held, second = (ReportedGuest(uid(BUILD), 1, uid(host, "a"), "running", {}) for host in (1, 3))
    async with a_cell_with(settings, held, second):
        assert (await berth(ends=1)).splitlines() == [
            f"would be destroyed: {uid(BUILD)}: agent agent-2 of cell c1 has a guest of its attempt 1,"
            " and its cell has deleted it",
            f"for you to judge: {uid(BUILD)}: ended as deleted in cell c1, and holds resources;"
            " agent agent-2 has a guest of it",
            "`berth heal --yes` repairs confirmed differences",
        ]


def shelved(settings: Settings, ended: float) -> None:
    stands(settings, "shelved", 2, leftovers="[[1,0,9.0]]")
    placed = a_move("shelve", BUILD)
    move = BuildMove(placed=placed, phase="release", since=900.0, began=900.0, end="done", ended=ended)
    story = encode_move(move).decode()
    columns = "id, build, kind, status, phase, source, host, since, ended, placed, story"
    values = (move.id, uid(BUILD), "shelve", "ended", "done", "", "", 900.0, ended, story, story)
    marks = ", ".join("?" for _ in values)
    sql(settings, "cell_c1", f"INSERT INTO moves ({columns}) VALUES ({marks})", *values)


SHELVED_BREACH = f"{uid(BUILD)}: ended as shelved in cell c1, and holds resources"


async def test_if_its_release_was_lost_the_allocations_of_a_shelved_build_are_released(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    shelved(settings, ended=1061.0)
    assert (await berth("--yes", ends=1)).startswith(f"for you to judge: {SHELVED_BREACH}; agent agent-1,")
    async with a_cell_with(settings):
        assert await berth("--yes") == f"released: {SHELVED_BREACH}\n"
        assert await berth() == "nothing is wrong\n"
        async with Bus(composition.transport(settings, "test")) as bus:
            boot = an_order(a_claim(BUILD, on_hosts(1)))
            assert (await bus.asker(CLAIM)(boot)).results == (
                Retired(why=SHELVED, cell="c1", revivable=True),
            )
            unshelve = an_order(a_claim(BUILD, on_hosts(1), begins=2))
            assert isinstance((await bus.asker(CLAIM)(unshelve)).results[0], Claimed)


@pytest.mark.parametrize("ended", [0.0, 1059.0])
async def test_allocations_that_an_unshelving_may_have_claimed_are_not_released(
    settings: Settings, berth: Callable[..., Awaitable[str]], ended: float
) -> None:
    if ended:
        shelved(settings, ended)
    else:  # its move is not recorded any more
        stands(settings, "shelved", 2, leftovers="[[1,0,9.0]]")
    async with a_cell_with(settings):
        assert await berth("--yes", ends=1) == (
            f"for you to judge: {SHELVED_BREACH}; a move that unshelves it may have claimed them\n"
        )


async def test_without_a_running_berth_differences_are_listed_only(
    settings: Settings, berth: Callable[..., Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stands(settings, "moving", 2)
    placed = replace(a_placed(5), cell="c1")
    lost = Build(id=placed.build, cell="c1", status="active", placed=placed, attempt=1, end="active")
    await add_build(settings, lost)
    monkeypatch.setattr(composition, "transport", TO_A_BERTH)
    [told] = (await berth(ends=1)).splitlines()
    assert told == (
        f"for you to judge: {lost.id}: active on {lost.host.root} in cell c1, and holds nothing;"
        " no running berth can be queried here"
    )
