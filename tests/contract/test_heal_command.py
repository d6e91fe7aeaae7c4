"""`berth audit` and `berth heal` for holder consumers: which instance they belong to, and which can be
released.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from berth import wiring
from berth.commands import audit as audit_command
from berth.commands.run import migrate_all
from berth.operations.audit import audit
from berth.settings import Settings
from bus.claims import Claimed, holder_consumer
from bus.clock import Clock
from bus.local import LocalBroker, LocalTransport
from bus.sql.database import Database
from cell_conductor import store
from cell_conductor.core.build import Build
from placement_worker import Placement
from tests.support.buses import serving
from tests.support.command_line import CommandLine
from tests.support.conductor_builders import a_placed
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_placement, a_report, an_order, on_hosts
from tests.support.placement_calls import silent_placement
from tests.support.planted import know, sql

BUILD = 1
KEEPER = holder_consumer(uid(BUILD), 1)
TO_A_BERTH = wiring.transport
OLD = Clock(now=lambda: 1000.0, monotonic=lambda: 1000.0)  # long before any audit of today


@pytest.fixture
async def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Settings]:
    """An instance that was moved from host 1 to host 2, by a claim like a scheduler's."""
    settings = Settings().having(state_dir=str(tmp_path), cells=("c1",))
    monkeypatch.setenv("BERTH_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("BERTH_CELLS", "c1")
    await migrate_all(settings, Console(quiet=True))
    broker = LocalBroker()
    monkeypatch.setattr(wiring, "transport", lambda *_, **__: LocalTransport(broker))
    async with a_placement(f"sqlite+aiosqlite:///{tmp_path}/placement.db", OLD) as placement:
        await placement.reports.report_many([a_report(1), a_report(2)])
        await _claim(placement, a_claim(BUILD, on_hosts(1)))
        move = replace(a_claim(BUILD, on_hosts(2)), generation=1, keep=KEEPER, begins=uid(1, "e"))
        await _claim(placement, move)
        async with serving(lambda: LocalTransport(broker), silent_placement(placement)):
            yield settings


async def _claim(placement: Placement, claim: Any) -> None:
    (answer,) = await placement.claims.claim_many([an_order(claim)])
    assert isinstance(answer.results[0], Claimed), answer


def stands(settings: Settings, status: str, attempt: int, host: int = 2, leftovers: str = "") -> None:
    know(settings, "c1", BUILD, status, host)
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
async def test_a_place_that_is_kept_for_somebody_is_a_note(
    settings: Settings, berth: Callable[..., Awaitable[str]], status: str, leftovers: str
) -> None:
    stands(settings, status, 2, leftovers=leftovers)
    found = await audit(settings)
    assert (found.breaches, found.types) == ([], {"INSTANCE": 1, "MIGRATION": 1})
    assert found.notes == [f"{KEEPER}: keeps the place that {uid(BUILD)} has moved from"]
    assert await berth("--yes") == "nothing is wrong\n"
    assert (await audit(settings)).consumers == 2


async def test_one_that_is_kept_for_nobody_is_given_back_when_its_cell_proves_it(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    stands(settings, "active", 2)
    why = "which is active, and of that attempt nothing is left"
    leak = f"{KEEPER}: keeps the room of attempt 1 of {uid(BUILD)}, {why}"
    assert (await audit(settings)).breaches == [leak]
    assert (await berth(ends=1)).splitlines() == [
        f"would be given back: {leak}",
        "`berth heal --yes` mends what is proven",
    ]
    assert (await audit(settings)).consumers == 2
    assert await berth("--yes") == f"given back: {leak}\n"
    assert ((await audit(settings)).breaches, (await audit(settings)).consumers) == ([], 1)


async def test_what_is_not_proven_is_listed_and_left(
    settings: Settings, berth: Callable[..., Awaitable[str]]
) -> None:
    stands(settings, "active", 1, host=1)
    told = (await berth("--yes", ends=1)).splitlines()
    assert all(line.startswith("for you to judge: ") for line in told)
    assert any("a move of it began that its cell has not heard of" in line for line in told)
    assert (await audit(settings)).consumers == 2


async def test_an_instance_that_waits_to_be_confirmed_holds_the_place_it_went_to(settings: Settings) -> None:
    stands(settings, "verifying", 2, host=1)
    a1, a2 = uid(1, "a"), uid(2, "a")
    assert (await audit(settings)).breaches == [
        f"{uid(BUILD)}: verifying on {a1}, but holds resources of {a2}"
    ]


async def test_what_nobody_can_be_asked_of_is_listed_while_no_berth_runs(
    settings: Settings, berth: Callable[..., Awaitable[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    stands(settings, "moving", 2)
    placed = replace(a_placed(5), cell="c1")
    lost = Build(id=placed.build, cell="c1", status="active", placed=placed, attempt=1, end="active")
    database = Database(f"sqlite+aiosqlite:///{settings.database.state_dir}/cell_c1.db")
    async with database.write() as tx:
        await store.add(tx, [lost], 1000.0)
    await database.close()
    monkeypatch.setattr(wiring, "transport", TO_A_BERTH)
    [told] = (await berth(ends=1)).splitlines()
    assert told == (
        f"for you to judge: {lost.id}: active on {lost.host.root} in cell c1, and holds nothing;"
        " no berth runs here that could be asked"
    )
