"""The audit: quiet about a sound berth, and loud about every breach that was planted in its databases."""

import asyncio
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from berth import wiring, worker_roles
from berth.commands.audit import examine
from berth.commands.run import migrate_all, ready
from berth.commands.terminal import Cli
from berth.doctor import looking
from berth.doctor.judgement import Finding, judged
from berth.doctor.looking import inspect
from berth.operations.audit import Audit, audit
from berth.services import embedded
from berth.settings import Settings
from bus.aggregates import AggregateEditRequested, MakeAggregate
from bus.cells import RegisterCell
from bus.claims import Claimed
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.reports import Inventory
from bus.resources import EditRequested, LoadProviders, ProviderLoad, SetAggregates
from bus.sql.migrations import migrate
from bus.vocabulary import Allocations
from tests.support.databases import know, sql
from tests.support.envelopes import a_letter, an_envelope
from tests.support.fake_keystone import Answer, AnsweringServer, FakeKeystone
from tests.support.forking import run_berth
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
from tests.support.placement_calls import edit_cell
from tests.support.waiting import in_time, until

NOW = 1_000_000.0
ACTIVE, FAILED, DELETED, BUILDING = 1, 2, 3, 4  # the builds of a sound berth


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings().having(state_dir=str(tmp_path), cells=("c1", "c2"))


@pytest.fixture
async def sound(settings: Settings) -> Settings:
    await migrate_all(settings, Console(quiet=True))
    url = f"sqlite+aiosqlite:///{settings.database.state_dir}/placement.db"
    async with a_placement(url, Clock(now=lambda: NOW, monotonic=lambda: NOW)) as placement:
        await placement.reports.report_many([a_report(1), a_report(2)])
        claims = [a_claim(number, on_hosts(1)) for number in (ACTIVE, FAILED, DELETED, BUILDING)]
        await placement.claims.claim_many([an_order(claim) for claim in claims])
        await placement.claims.release_many(
            [a_release(FAILED, 1, "error: no"), a_release(DELETED, 1, "deleted")]
        )
    know(settings, "c1", ACTIVE, "active", 1)
    know(settings, "c1", FAILED, "error", 1)
    know(settings, "c1", DELETED, "deleted", 1)
    know(settings, "c2", BUILDING, "building", 1)
    return settings


async def audited(settings: Settings, *, after: float = 3600.0, settled: bool = False) -> Audit:
    return await audit(
        settings, settled=settled, clock=Clock(now=lambda: NOW + after, monotonic=lambda: NOW + after)
    )


async def test_a_cell_asked_to_delete_a_build_of_another_cell_ignores_it(sound: Settings) -> None:
    know(sound, "c2", ACTIVE, "deleted", 1)
    sql(sound, "cell_c2", "UPDATE builds SET root = '' WHERE id = ?", uid(ACTIVE))
    found = await audited(sound)
    assert (found.breaches, found.builds["active"]) == ([], 1)


async def test_a_sound_berth_is_clean(sound: Settings) -> None:
    found = await audited(sound)
    assert (found.clean, found.breaches) == (True, [])
    assert found.consumers == 2
    assert found.builds == {"active": 1, "error": 1, "deleted": 1, "building": 1}


def over_used(settings: Settings, used: int = 2, total: int = 1) -> None:
    sql(settings, "placement", "UPDATE inventories SET total = ? WHERE used = ?", total, used)


def miscounted(settings: Settings) -> None:
    sql(settings, "placement", "UPDATE inventories SET used = 1 WHERE used = 2")


def active_without_resources(settings: Settings) -> None:
    know(settings, "c1", 5, "active", 2)


def held_elsewhere(settings: Settings) -> None:
    sql(settings, "cell_c1", "UPDATE builds SET root = ? WHERE id = ?", uid(2, "a"), uid(ACTIVE))


def known_to_no_cell(settings: Settings) -> None:
    sql(settings, "cell_c1", "DELETE FROM builds WHERE id = ?", uid(ACTIVE))


def retired_and_yet_holding(settings: Settings) -> None:
    sql(
        settings,
        "placement",
        "INSERT INTO retired_consumers VALUES (?, 'deleted', 0, false, '')",
        uid(ACTIVE),
    )


def known_in_two_cells(settings: Settings) -> None:
    know(settings, "c2", ACTIVE, "active", 1)


def failed_and_yet_holding(settings: Settings) -> None:
    sql(settings, "cell_c1", "UPDATE builds SET status = 'error' WHERE id = ?", uid(ACTIVE))


def deleted_and_yet_holding(settings: Settings) -> None:
    sql(settings, "cell_c1", "UPDATE builds SET status = 'deleted' WHERE id = ?", uid(ACTIVE))


A1, A2 = uid(1, "a"), uid(2, "a")


@pytest.mark.parametrize(
    ("plant", "breaches"),
    [
        (over_used, [f"provider {A1}: oversold, 2 VCPU used of 1"]),
        (miscounted, [f"provider {A1}: 1 VCPU counted as used, 2 allocated"]),
        (active_without_resources, [f"{uid(5)}: active on {A2} in cell c1, and holds nothing"]),
        (held_elsewhere, [f"{uid(ACTIVE)}: active on {A2}, but holds resources of {A1}"]),
        (known_to_no_cell, [f"{uid(ACTIVE)}: holds resources, but no cell knows it"]),
        (
            retired_and_yet_holding,
            [
                f"consumer {uid(ACTIVE)}: has retired (deleted) and is still there",
                f"{uid(ACTIVE)}: retired, and yet holds resources",
            ],
        ),
        (known_in_two_cells, [f"{uid(ACTIVE)}: known in cells c1 and c2"]),
        (failed_and_yet_holding, [f"{uid(ACTIVE)}: ended as error in cell c1, and holds resources"]),
        (deleted_and_yet_holding, [f"{uid(ACTIVE)}: ended as deleted in cell c1, and holds resources"]),
    ],
)
async def test_each_planted_breach_is_found_and_named(
    sound: Settings, plant: Callable[[Settings], None], breaches: list[str]
) -> None:
    plant(sound)
    found = await audited(sound)
    assert (found.clean, found.breaches) == (False, breaches)


async def test_a_host_that_a_client_put_into_two_zones_is_a_note(sound: Settings) -> None:
    """`PUT /resource_providers/{uuid}/aggregates` answers as Placement does, which knows of no zones."""
    url = f"sqlite+aiosqlite:///{sound.database.state_dir}/placement.db"
    east, west, again, plain = (uid(number, "e") for number in range(1, 5))
    zones = {east: "east", west: "west", again: "east"}
    async with a_placement(url, Clock(now=lambda: NOW, monotonic=lambda: NOW)) as placement:
        for id_, zone in zones.items():
            made = MakeAggregate(
                aggregate=id_, name=f"{zone}-{id_[-1]}", metadata={"availability_zone": zone}
            )
            await placement.aggregates.edit(AggregateEditRequested(edit=made))
        for host, aggregates in ((1, (east, west, plain)), (2, (east, again))):
            order = SetAggregates(provider=uid(host, "a"), aggregates=aggregates)
            await placement.providers.edit_many([EditRequested(edit=order)])
    found = await audited(sound)
    assert (found.clean, found.notes) == (
        True,
        [f"host host-1 ({A1}): is in 2 zones: east by aggregate east-1, west by aggregate west-2"],
    )


async def test_a_recent_claim_may_belong_to_a_build_that_is_not_stored_yet(sound: Settings) -> None:
    known_to_no_cell(sound)
    assert (await audited(sound, after=1.0)).clean
    assert not (await audited(sound, after=60.0)).clean
    assert not (await audited(sound, after=1.0, settled=True)).clean


CHILD, POOL, LONE, FOREIGN, SHARED, SERVED = range(11, 17)
SOMEBODY = 7
DISK, RACK = {"DISK_GB": Inventory(total=100)}, (uid(1, "e"),)


async def holding(settings: Settings, consumer: int, allocations: Allocations, **given: Any) -> None:
    url = f"sqlite+aiosqlite:///{settings.database.state_dir}/placement.db"
    async with a_placement(url, Clock(now=lambda: NOW + 60, monotonic=lambda: NOW + 60)) as placement:
        pool = ProviderLoad(id=uid(POOL, "a"), name="pool", inventories={"DISK_GB": Inventory(total=100)})
        lone = ProviderLoad(id=uid(LONE, "a"), name="lone", inventories={"VCPU": Inventory(total=8)})
        await placement.bulk_load.load(LoadProviders(providers=(pool, lone)))
        await placement.reports.report_many(
            [
                a_report(2, a_provider(CHILD, parent=2), sequence=2),
                replace(a_report(FOREIGN), agent="theirs"),
                a_report(SHARED, inventories=DISK, traits=("MISC_SHARES_VIA_AGGREGATE",), aggregates=RACK),
                a_report(SERVED, aggregates=RACK),
            ]
        )
        claim = replace(a_claim(consumer, allocations), **given)
        (answer,) = await placement.claims.claim_many([an_order(claim)])
        assert isinstance(answer.results[0], Claimed)


@pytest.mark.parametrize(
    ("allocations", "known_on"),
    [
        ({uid(CHILD, "a"): {"VCPU": 1}}, 2),
        ({uid(2, "a"): {"VCPU": 1}, uid(POOL, "a"): {"DISK_GB": 5}}, 2),
        ({uid(CHILD, "a"): {"VCPU": 1}, uid(POOL, "a"): {"DISK_GB": 5}}, 2),
    ],
)
async def test_a_build_may_hold_resources_of_child_and_sharing_providers(
    sound: Settings, allocations: Allocations, known_on: int
) -> None:
    await holding(sound, SOMEBODY, allocations)
    know(sound, "c1", SOMEBODY, "active", known_on)
    found = await audited(sound)
    assert (found.breaches, found.notes) == ([], [])


async def test_a_build_with_only_shared_resources_is_a_breach(sound: Settings) -> None:
    await holding(sound, SOMEBODY, {uid(POOL, "a"): {"DISK_GB": 5}})
    know(sound, "c1", SOMEBODY, "active", 2)
    assert (await audited(sound)).breaches == [
        f"{uid(SOMEBODY)}: active on {A2}, but holds resources of {uid(POOL, 'a')}"
    ]


async def test_a_pool_may_serve_a_host_alone(sound: Settings) -> None:
    """Where both are in an aggregate."""
    await holding(sound, SOMEBODY, on_hosts(SHARED, DISK_GB=5))
    know(sound, "c1", SOMEBODY, "active", SERVED)
    assert (await audited(sound)).breaches == []
    sql(sound, "placement", "DELETE FROM resource_provider_aggregates")
    assert len((await audited(sound)).breaches) == 1


async def test_capacity_below_usage_is_a_breach_only_if_more_is_claimed(sound: Settings) -> None:
    url = f"sqlite+aiosqlite:///{sound.database.state_dir}/placement.db"
    async with a_placement(url, Clock(now=lambda: NOW, monotonic=lambda: NOW)) as placement:
        closed = {"VCPU": Inventory(total=8, reserved=8)}
        await placement.reports.report_many([a_report(1, sequence=2, inventories=closed)])
    assert (await audited(sound)).breaches == []
    sql(sound, "placement", "UPDATE inventories SET used = 3 WHERE used = 2")
    assert f"provider {A1}: oversold, 3 VCPU used of 0" in (await audited(sound)).breaches


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
    await holding(sound, SOMEBODY, allocations, **given)
    found = await audited(sound.having(ironic_agents={"c2": "theirs"}))
    assert (found.clean, found.breaches, found.notes) == (True, [], [f"{uid(SOMEBODY)}: {note}"])


async def test_a_holder_consumer_of_a_move_is_a_note_with_its_instance(sound: Settings) -> None:
    await holding(sound, SOMEBODY, on_hosts(2), type="MIGRATION")
    sql(
        sound, "placement", f"UPDATE consumers SET keeps_for = '{uid(ACTIVE)}' WHERE uuid = '{uid(SOMEBODY)}'"
    )
    sql(sound, "cell_c1", "UPDATE builds SET status = 'moving' WHERE id = ?", uid(ACTIVE))
    found = await audited(sound)
    assert found.clean
    assert found.notes == [f"{uid(SOMEBODY)}: holds the host that {uid(ACTIVE)} has moved from"]


async def test_a_registered_cell_without_a_named_database_is_a_note(sound: Settings) -> None:
    url = f"sqlite+aiosqlite:///{sound.database.state_dir}/placement.db"
    async with a_placement(url, Clock(now=lambda: NOW, monotonic=lambda: NOW)) as placement:
        await placement.reports.report_many([a_report(9, cell="c9")])
        await placement.claims.claim_many([an_order(a_claim(9, on_hosts(9)))])
        unknown = await audited(sound)
        assert unknown.breaches == [f"{uid(9)}: holds resources, but no cell knows it"]
        await edit_cell(placement, RegisterCell(cell="c9"))
    found = await audited(sound)
    assert found.clean and found.notes == [
        "cell c9: registered but not checked: its database is not in the settings",
        f"{uid(9)}: not checked: it is in cell c9",
    ]


async def test_an_import_onto_an_unreported_host_is_a_note(sound: Settings) -> None:
    known_to_no_cell(sound)
    sql(sound, "placement", "UPDATE hosts SET created_at = created_at + 1")
    found = await audited(sound)
    assert found.notes == [f"{uid(ACTIVE)}: not ours: it was there before an agent reported its host"]
    assert found.clean


# Placement alone


async def test_placement_may_be_checked_alone(settings: Settings) -> None:
    url = f"sqlite+aiosqlite:///{settings.database.state_dir}/placement.db"
    async with a_placement(url, Clock(now=lambda: NOW, monotonic=lambda: NOW)) as placement:
        await placement.reports.report_many([a_report(1)])
        await placement.claims.claim_many([an_order(a_claim(1, on_hosts(1)))])
    with pytest.raises(Unavailable, match=r"there never was a cell c1 in .* or --placement-only"):
        await audited(settings)
    found = await audit(settings, placement_only=True)
    assert (found.breaches, found.consumers, found.builds) == ([], 1, {})
    assert found.notes == ["only placement was checked, not whether every allocation has an owner"]
    over_used(settings, used=1, total=0)
    assert (await audit(settings, placement_only=True)).breaches


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        ("", 0, "only placement was checked"),
        ("--placement-only", 0, "only placement was checked"),
        ("--cells c1", 1, "there never was a cell c1"),
    ],
)
@pytest.mark.parametrize("store", ["placement.db", ""])
async def test_placement_is_audited_alone_unless_cells_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, code: int, says: str, store: str
) -> None:
    monkeypatch.chdir(tmp_path)
    async with a_placement(f"sqlite+aiosqlite:///{tmp_path}/placement.db"):
        pass
    if store and code:
        says = "has room for placement alone: say --placement-only"
    command = ["audit", "--database", f"sqlite+aiosqlite:///{tmp_path}/{store}", *flags.split()]
    done = await asyncio.to_thread(run_berth, command, tmp_path, os.environ)
    assert (done.returncode, says in done.stdout + done.stderr) == (code, True), done.stdout + done.stderr


async def test_when_all_has_settled_nothing_may_be_under_way(sound: Settings) -> None:
    found = await audited(sound, settled=True)
    assert found.breaches == [f"{uid(BUILDING)}: still building in cell c2"]


async def test_a_cells_database_may_be_elsewhere(sound: Settings, tmp_path: Path) -> None:
    elsewhere = Settings().having(
        state_dir=sound.database.state_dir,
        cells=sound.cell_names,
        cell_database_urls={"c2": f"sqlite+aiosqlite:///{tmp_path}/other/"},
    )
    with pytest.raises(Unavailable, match="there never was a cell c2"):
        await audited(elsewhere)
    await migrate_all(elsewhere, Console(quiet=True))
    assert (await audited(elsewhere)).breaches == [f"{uid(BUILDING)}: holds resources, but no cell knows it"]


async def test_a_missing_state_directory_is_reported(settings: Settings) -> None:
    with pytest.raises(Unavailable, match="there is no state of berth in"):
        await audited(settings)
    assert list(Path(settings.database.state_dir).iterdir()) == []  # and asking has made nothing


QUIET = {"cells": ("c1",), "hosts": 2}


def of(found: list[Finding], level: str) -> dict[str, str]:
    return {finding.about: finding.says for finding in found if finding.level == level}


async def test_an_embedded_berth_is_examined_and_found_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings().having(state_dir=str(tmp_path), **QUIET)
    async with embedded(settings, open_socket=True) as house:
        await ready(house.bus, settings)
        found = judged(await in_time(inspect(settings)))
        assert {"worker placement", "worker scheduler", "worker conductor.c1"} <= of(found, "fine").keys()
        assert {"database placement", "database scheduler", "database cell_c1"} <= of(found, "fine").keys()
        assert not of(found, "broken")
        told = io.StringIO()
        code = await in_time(examine(Cli(settings, True, Console(file=told, width=500))))
    printed = json.loads(capsys.readouterr().out)
    assert printed["exit_code"] == code
    assert {one["about"] for one in printed["findings"]} >= {"Python", "worker placement"}


async def test_a_missing_berth_is_reported(tmp_path: Path) -> None:
    found = judged(await in_time(inspect(Settings().having(state_dir=str(tmp_path), **QUIET))))
    assert "no berth answers" in of(found, "broken")["bus"]
    assert of(found, "broken")["database placement"] == "It was never made: it has no tables."
    assert list(tmp_path.iterdir()) == [], "looking makes no files"


class IronicWithoutClasses(AnsweringServer):
    def read(self, path: str, headers: dict[str, str]) -> Answer:
        version = {"X-OpenStack-Ironic-API-Maximum-Version": "1.90"}
        nodes = [{"uuid": uid(n), "name": f"n{n}", "resource_class": "gold" if n else None} for n in range(2)]
        return 200, version, {"nodes": nodes} if "/nodes" in path else {}


async def test_keystone_and_ironic_are_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keystone, ironic = FakeKeystone(), IronicWithoutClasses()
    for name, value in keystone.access().auth.items():
        monkeypatch.setenv(f"OS_{name.upper()}", value)
    clouds = {"placement_auth": "keystone", "placement_cloud": "envvars"}
    clouds |= {"ironic_api_url": f"http://127.0.0.1:{ironic.port}"}
    settings = Settings().having(state_dir=str(tmp_path), **QUIET, **clouds)
    try:
        found = judged(await in_time(inspect(settings)))
        assert "It checks tokens at" in of(found, "fine")["Keystone"]
        without = of(found, "warning")["Ironic"]
        assert without == "1 of 2 nodes have no resource class, so nothing is placed there: n0."
        keystone.status = 401
    finally:
        ironic.close()
    try:
        found = judged(await in_time(inspect(settings)))
    finally:
        keystone.close()
    assert "Keystone refused (401)" in of(found, "broken")["Keystone"]
    assert "cannot be read" in of(found, "broken")["Ironic"]


@pytest.mark.services
async def test_planted_faults_are_found(
    amqp_url: str, database_url: str, bus_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "ANSWER_SECONDS", 1.0)
    said: dict[str, Any] = {"amqp_url": amqp_url, "database_url": database_url, "exchange": bus_name, **QUIET}
    settings = Settings().having(**said)
    placement = wiring.database(settings, worker_roles.Role("placement"))
    try:
        await migrate(placement, "placement_worker")
    finally:
        await placement.close()
    scheduler = {spec.name: spec for spec in wiring.queues(settings)[worker_roles.Role("scheduler")]}
    asked = scheduler["scheduler:build.requested"]
    async with Bus(wiring.transport(settings, "test")) as bus:
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
    silent = "It has no consumer, and no messages wait."
    assert of(again, "warning")["queue ask:scheduler.waiting"] == silent, "nobody is asked who is not there"
    broken, warned = of(found, "broken"), of(found, "warning")
    assert broken["queue scheduler:build.requested"] == "It has no consumer, and 1 message waits."
    assert broken["database cell_c1"] == "It was never made: it has no tables."
    assert "worker placement" in broken, "nobody answers"
    assert warned["worker conductor.c1"] == "It was never here: none of its queues is there."
    assert "1 dead letters" in warned["dead letters"]
    assert "database placement" in of(found, "fine")
    assert any(about.startswith("RabbitMQ") for about in of(found, "fine"))

    wrong = amqp_url.replace("@", "x@") if "@" in amqp_url else amqp_url.replace("//", "//nobody:no@")
    shut_out = judged(await in_time(inspect(Settings().having(**said | {"amqp_url": wrong}))))
    assert any("credentials" in says for says in of(shut_out, "broken").values())
    assert "x@" not in str(shut_out)
