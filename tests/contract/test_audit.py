"""The audit finds nothing in a sound berth, and finds every breach that was planted in its databases."""

import io
import json
from contextlib import AbstractAsyncContextManager, closing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from berth import composition, worker_roles
from berth.commands.audit import examine
from berth.commands.run import migrate_all, ready
from berth.doctor.judgement import judged
from berth.doctor.looking import inspect
from berth.features import packages
from berth.kit.findings import Finding
from berth.kit.terminal import Cli
from berth.operations.audit import Audit, audit
from berth.operations.cell_records import builds_by_cell
from berth.problems import reading
from berth.services import embedded
from berth.settings import Settings
from bus.cells import RegisterCell
from bus.claims import Claimed
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.messages import InventoryReported
from bus.reports import Inventory
from bus.resources import SetAggregates
from bus.sql.migrations import migrate
from bus.vocabulary import Allocations
from placement_worker import Placement
from tests.support.aggregates import make
from tests.support.databases import insert_build, sql
from tests.support.envelopes import a_letter, an_envelope
from tests.support.fake_keystone import Answer, AnsweringServer
from tests.support.ids import uid
from tests.support.placement_builders import (
    a_claim,
    a_placement,
    a_provider,
    a_release,
    a_report,
    an_order,
    on_hosts,
)
from tests.support.placement_calls import claim, edit, edit_cell, make_providers, must_take, report
from tests.support.waiting import in_time, until

NOW = 1_000_000.0
ACTIVE, FAILED, DELETED, BUILDING = 1, 2, 3, 4  # numbers of the builds in a sound berth


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings().having(state_dir=str(tmp_path), cells=("c1", "c2"))


def placement_of(settings: Settings, now: float = NOW) -> AbstractAsyncContextManager[Placement]:
    url = f"sqlite+aiosqlite:///{settings.database.state_dir}/placement.db"
    return a_placement(url, Clock(now=lambda: now, monotonic=lambda: now))


@pytest.fixture
async def sound(settings: Settings) -> Settings:
    await migrate_all(settings, Console(quiet=True))
    async with placement_of(settings) as placement:
        await report(placement, a_report(1), a_report(2))
        for number in (ACTIVE, FAILED, DELETED, BUILDING):
            await claim(placement, an_order(a_claim(number, on_hosts(1))))
        await placement.claims.release_many(
            [a_release(FAILED, 1, "error: no"), a_release(DELETED, 1, "deleted")]
        )
    for cell, number, status in (
        ("c1", ACTIVE, "active"),
        ("c1", FAILED, "error"),
        ("c1", DELETED, "deleted"),
        ("c2", BUILDING, "building"),
    ):
        insert_build(settings, cell, number, status, 1)
    return settings


async def audited(settings: Settings, *, after: float = 3600.0, settled: bool = False) -> Audit:
    clock = Clock(now=lambda: NOW + after, monotonic=lambda: NOW + after)
    return await audit(settings, settled=settled, clock=clock)


async def test_a_cell_asked_to_delete_a_build_of_another_cell_ignores_it(sound: Settings) -> None:
    insert_build(sound, "c2", ACTIVE, "deleted", 1)
    sql(sound, "cell_c2", "UPDATE placed_builds SET root = '' WHERE build = ?", uid(ACTIVE))
    found = await audited(sound)
    assert (found.breaches, found.builds["active"]) == ([], 1)
    assert (await builds_by_cell(sound, ("c1", "c2"))).deleted == {uid(DELETED)}


A1, A2 = uid(1, "a"), uid(2, "a")
LOST = ("cell_c1", f"DELETE FROM builds WHERE id = '{uid(ACTIVE)}'")
RETIRED = f"INSERT INTO retired_consumers VALUES ('{uid(ACTIVE)}', 'deleted', 0, false, '', false, '')"


ON_A2 = ("cell_c1", f"UPDATE placed_builds SET root = '{A2}' WHERE build = '{uid(ACTIVE)}'")
IN_ERROR = ("cell_c1", f"UPDATE builds SET status = 'error' WHERE id = '{uid(ACTIVE)}'")


@pytest.mark.parametrize(
    ("store", "statement", "breaches"),
    [
        ("placement", "UPDATE inventories SET total = 1 WHERE used = 2",
         [f"provider {A1}: oversold, 2 VCPU used of 1"]),
        ("placement", "UPDATE inventories SET used = 1 WHERE used = 2",
         [f"provider {A1}: 1 VCPU counted as used, 2 allocated"]),
        (*ON_A2, [f"{uid(ACTIVE)}: active on {A2}, but holds resources of {A1}"]),
        (*LOST, [f"{uid(ACTIVE)}: holds resources, but no cell knows it"]),
        ("placement", RETIRED,
         [f"consumer {uid(ACTIVE)}: has retired (deleted) and is still there",
          f"{uid(ACTIVE)}: retired, and yet holds resources"]),
        (*IN_ERROR, [f"{uid(ACTIVE)}: ended as error in cell c1, and holds resources"]),
    ],
)  # fmt: skip
async def test_each_planted_breach_is_found_and_named(
    sound: Settings, store: str, statement: str, breaches: list[str]
) -> None:
    sql(sound, store, statement)
    found = await audited(sound)
    assert (found.clean, found.breaches) == (False, breaches)


async def test_a_node_with_two_holders_is_a_breach(sound: Settings) -> None:
    def a_node(class_: str, sequence: int) -> InventoryReported:
        one = {class_: Inventory(total=1)}
        return a_report(3, sequence=sequence, name=uid(3, "a"), inventories=one)

    async with placement_of(sound) as placement:
        await report(placement, a_node("CUSTOM_ONE", 1))
        await must_take(placement, a_claim(11, on_hosts(3, CUSTOM_ONE=1)))
        await report(placement, a_node("CUSTOM_TWO", 2))
        sql(sound, "placement", "UPDATE inventories SET reserved = 0 WHERE withheld = 1")
        await must_take(placement, a_claim(12, on_hosts(3, CUSTOM_TWO=1)))
    found = await audit(sound, placement_only=True)
    node = f"host-3 ({uid(3, 'a')})"
    assert found.breaches == [f"node {node}: consumers {uid(11)} and {uid(12)} hold the node"]


@pytest.mark.parametrize(
    ("cell", "number", "breach"),
    [
        ("c1", 5, f"{uid(5)}: active on {A2} in cell c1, and holds nothing"),
        ("c2", ACTIVE, f"{uid(ACTIVE)}: known in cells c1 and c2"),
    ],
)
async def test_a_build_that_a_cell_should_not_know_is_a_breach(
    sound: Settings, cell: str, number: int, breach: str
) -> None:
    insert_build(sound, cell, number, "active", 2)
    assert breach in (await audited(sound)).breaches


async def test_a_host_that_a_client_put_into_two_zones_is_a_note(sound: Settings) -> None:
    """`PUT /resource_providers/{uuid}/aggregates` checks no zones, because OpenStack Placement has none."""
    east, west, again, plain = (uid(number, "e") for number in range(1, 5))
    async with placement_of(sound) as placement:
        for id_, zone in ((east, "east"), (west, "west"), (again, "east")):
            await make(placement, id_, f"{zone}-{id_[-1]}", availability_zone=zone)
        for host, aggregates in ((1, (east, west, plain)), (2, (east, again))):
            await edit(placement, SetAggregates(provider=uid(host, "a"), aggregates=aggregates))
    found = await audited(sound)
    note = f"host host-1 ({A1}): is in 2 zones: east by aggregate east-1, west by aggregate west-2"
    assert (found.clean, found.notes) == (True, [note])


async def test_a_guest_of_a_removed_agent_is_a_note(sound: Settings) -> None:
    values = (uid(DELETED), 1, uid(1, "a"), "host-1", "agent-1", NOW)
    sql(sound, "cell_c1", "INSERT INTO assumed_guests (build, attempt, root, host, agent, since)"
        " VALUES (?, ?, ?, ?, ?, ?)", *values)  # fmt: skip
    found = await audited(sound)
    why = "is assumed to be destroyed, because its agent agent-1 was removed from cell c1"
    assert (found.clean, found.notes) == (True, [f"{uid(DELETED)}: its guest on host-1 (attempt 1) {why}"])


async def test_a_recent_claim_may_belong_to_a_build_that_is_not_stored_yet(sound: Settings) -> None:
    sql(sound, *LOST)
    assert (await audited(sound, after=1.0)).clean
    assert not (await audited(sound, after=60.0)).clean
    assert not (await audited(sound, after=1.0, settled=True)).clean


CHILD, POOL, LONE, FOREIGN, SHARED, SERVED = range(11, 17)
SOMEBODY = 7
DISK, RACK = {"DISK_GB": Inventory(total=100)}, (uid(1, "e"),)


async def holders(settings: Settings, consumer: int, allocations: Allocations, **given: Any) -> None:
    async with placement_of(settings, NOW + 60) as placement:
        pool = a_provider(POOL, name="pool", inventories=DISK)
        await make_providers(placement, pool, a_provider(LONE, name="lone"))
        await report(
            placement,
            a_report(2, a_provider(CHILD, parent=2), sequence=2),
            replace(a_report(FOREIGN), agent="theirs"),
            a_report(SHARED, inventories=DISK, traits=("MISC_SHARES_VIA_AGGREGATE",), aggregates=RACK),
            a_report(SERVED, aggregates=RACK),
        )
        (answer,) = await claim(placement, an_order(replace(a_claim(consumer, allocations), **given)))
        assert isinstance(answer, Claimed)


async def test_a_pool_may_serve_a_host_alone(sound: Settings) -> None:
    """The pool may serve an instance on a host if pool and host share an aggregate."""
    await holders(sound, SOMEBODY, on_hosts(SHARED, DISK_GB=5))
    insert_build(sound, "c1", SOMEBODY, "active", SERVED)
    assert (await audited(sound)).breaches == []
    sql(sound, "placement", "DELETE FROM resource_provider_aggregates")
    assert len((await audited(sound)).breaches) == 1


@pytest.mark.parametrize(
    ("allocations", "given", "note"),
    [
        (on_hosts(2), {"type": "CLEANUP"}, "holds resources of a guest that may still exist"),
        (on_hosts(2), {"type": "MIGRATION"}, "not ours: its type is MIGRATION"),
        (on_hosts(2), {"type": None}, "not ours: its type is unknown"),
        (on_hosts(2), {"client": True}, "not ours: a client of the API claimed for it"),
        (on_hosts(LONE), {}, "not ours: on providers that no agent reports"),
        (on_hosts(FOREIGN), {}, "not ours: on hosts of theirs, which is no agent of berth's"),
    ],
)
async def test_foreign_consumers_are_notes(
    sound: Settings, allocations: Allocations, given: dict[str, Any], note: str
) -> None:
    await holders(sound, SOMEBODY, allocations, **given)
    found = await audited(sound.having(ironic_agents={"c2": "theirs"}))
    assert (found.clean, found.breaches, found.notes) == (True, [], [f"{uid(SOMEBODY)}: {note}"])


async def test_a_registered_cell_without_a_named_database_is_a_note(sound: Settings) -> None:
    async with placement_of(sound) as placement:
        await report(placement, a_report(9, cell="c9"))
        await claim(placement, an_order(a_claim(9, on_hosts(9))))
        unknown = await audited(sound)
        assert unknown.breaches == [f"{uid(9)}: holds resources, but no cell knows it"]
        await edit_cell(placement, RegisterCell(cell="c9"))
    found = await audited(sound)
    assert found.clean and found.notes == [
        "cell c9: registered but not checked: its database is not in the settings",
        f"{uid(9)}: not checked: it is in cell c9",
    ]


async def test_an_import_onto_an_unreported_host_is_a_note(sound: Settings) -> None:
    sql(sound, *LOST)
    sql(sound, "placement", "UPDATE hosts SET created_at = created_at + 1")
    found = await audited(sound)
    assert found.notes == [f"{uid(ACTIVE)}: not ours: it was there before an agent reported its host"]
    assert found.clean


# Placement alone


async def test_placement_may_be_checked_alone(settings: Settings) -> None:
    async with placement_of(settings) as placement:
        await report(placement, a_report(1))
        await claim(placement, an_order(a_claim(1, on_hosts(1))))
    with pytest.raises(Unavailable, match=r"has no data of a cell c1: .* or --placement-only"):
        await audited(settings)
    found = await audit(settings, placement_only=True)
    assert (found.breaches, found.consumers, found.builds) == ([], 1, {})
    assert found.notes == ["only placement was checked, not whether every allocation has an owner"]
    sql(settings, "placement", "UPDATE inventories SET total = 0 WHERE used = 1")
    assert (await audit(settings, placement_only=True)).breaches


async def test_a_missing_state_directory_is_reported(settings: Settings) -> None:
    with pytest.raises(Unavailable, match="there is no state of berth in"):
        await audited(settings)
    assert list(Path(settings.database.state_dir).iterdir()) == []  # the audit creates no file


QUIET: dict[str, Any] = {"cells": ("c1",), "simulator": {"hosts": 2}}


def of(found: list[Finding], level: str) -> dict[str, str]:
    return {finding.about: finding.says for finding in found if finding.level == level}


async def test_doctor_expects_only_the_cells_that_an_embedded_berth_has_made(tmp_path: Path) -> None:
    settings = Settings().having(state_dir=str(tmp_path), **QUIET | {"cells": ("c1", "c2", "c3")})
    started = settings.having(cells=("c1", "c2"))
    async with embedded(started, open_socket=True) as house:
        await ready(house.bus, started)
        found = judged(await in_time(inspect(settings)))
    fine = of(found, "fine")
    assert len(found) == len(fine) and "database cell_c3" not in fine
    assert {"database cell_c2", "cell c3", "problems"} <= fine.keys()


async def test_doctor_finds_no_problem_of_an_embedded_berth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings().having(state_dir=str(tmp_path), **QUIET)
    async with embedded(settings, open_socket=True) as house:
        await ready(house.bus, settings)
        found = judged(await in_time(inspect(settings)))
        assert of(found, "fine")["problems"] == "No known problems."
        assert {"database placement", "database scheduler", "database cell_c1"} <= of(found, "fine").keys()
        assert not of(found, "broken")
        sent = io.StringIO()
        code = await in_time(examine(Cli(settings, True, Console(file=sent, width=500))))
    printed = json.loads(capsys.readouterr().out)
    assert printed["exit_code"] == code
    assert {one["about"] for one in printed["findings"]} >= {"Python", "problems"}


class IronicWithoutClasses(AnsweringServer):
    def read(self, path: str, headers: dict[str, str]) -> Answer:
        version = {"X-OpenStack-Ironic-API-Maximum-Version": "1.90"}
        nodes = [{"uuid": uid(n), "name": f"n{n}", "resource_class": "gold" if n else None} for n in range(2)]
        return 200, version, {"nodes": nodes} if "/nodes" in path else {}


async def test_doctor_checks_ironic(tmp_path: Path) -> None:
    ironic = IronicWithoutClasses()
    api = f"http://127.0.0.1:{ironic.port}"
    settings = Settings().having(state_dir=str(tmp_path), ironic_api=api, **QUIET)
    with closing(ironic):
        found = judged(await in_time(inspect(settings)))
        without = of(found, "warning")["Ironic"]
        assert without == "1 of 2 nodes have no resource class, so nothing is placed there: n0."
    found = judged(await in_time(inspect(settings)))
    assert "cannot be read" in of(found, "broken")["Ironic"]


@pytest.mark.services
async def test_doctor_finds_planted_faults(
    amqp_url: str, database_url: str, bus_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "ANSWER_SECONDS", 1.0)
    reply: dict[str, Any] = {
        "amqp_url": amqp_url,
        "database_url": database_url,
        "exchange": bus_name,
        **QUIET,
    }
    settings = Settings().having(**reply)
    placement = composition.database_of(settings, worker_roles.Role("placement"))
    try:
        await migrate(placement, *packages("placement"))
    finally:
        await placement.close()
    scheduler = {spec.name: spec for spec in composition.queues(settings)[worker_roles.Role("scheduler")]}
    asked = scheduler["scheduler:build.requested"]
    async with Bus(composition.transport(settings, "test")) as bus:
        transport = bus.transport
        await transport.declare(asked)
        await transport.publish([an_envelope(key="build.requested")], expected=[True])
        await transport.store_dead_letter(a_letter(queue="scheduler:build.requested"))

        async def buried() -> bool:
            return len(await transport.dead_letters()) == 1

        await until(buried)
        asked = scheduler["ask:scheduler.waiting"]
        await transport.declare(asked)
        found = judged(await in_time(inspect(settings)))
        again = judged(await in_time(inspect(settings)))
    assert of(again, "broken") == of(found, "broken"), "workers without a consumer are not queried"
    broken, warned = of(found, "broken"), of(found, "warning")
    assert broken["placement and scheduler"] == (
        "No answer from placement and scheduler (1 message in their queues)."
    )
    assert broken["database cell_c1"] == "It was never made: it has no tables."
    assert warned["worker conductor.c1"] == "It has never run: its queues do not exist."
    assert "Dead letters: 1" in warned["dead letters"]
    assert "database placement" in of(found, "fine")
    assert any(about.startswith("RabbitMQ") for about in of(found, "fine"))

    wrong = amqp_url.replace("@", "x@") if "@" in amqp_url else amqp_url.replace("//", "//nobody:no@")
    shut_out = judged(await in_time(inspect(Settings().having(**reply | {"amqp_url": wrong}))))
    assert any("credentials" in says for says in of(shut_out, "broken").values())
    assert "x@" not in str(shut_out)
