"""An instance in an embedded berth, by its commands: moved, resized, shelved, drained."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from berth.kit.testing import audit
from deploy.servers import free_port
from features.moves.tests.support.move_builders import a_move
from tests.support.ids import uid
from tests.support.living_berth import LivingBerth, Opened
from tests.support.waiting import until


@pytest.fixture
async def berth(opened: Opened) -> AsyncIterator[LivingBerth]:
    async with opened("c1", simulator={"hosts": 4}) as berth:
        yield berth


async def test_an_instance_is_moved_in_every_way_and_deleted(berth: LivingBerth) -> None:
    build, first = await berth.boot("--vcpus", "2", "--image", "debian")
    second = await berth.ends("instance", "move", build)
    assert (second["end"], second["host"] != first) == ("done", True)
    sent = await berth("why", second["move"])
    assert f"to {second['host']} in cell c1: ended done" in sent and "the best" in sent
    live = await berth.ends("instance", "move", build, "--live", "--to", first)
    assert (live["end"], live["host"]) == ("done", first)

    bigger = await berth.ends("instance", "resize", build, "--vcpus", "4")
    assert bigger["end"] == "verifying"
    back = await berth.ends("move", "revert", build)
    assert (back["end"], back["host"]) == ("reverted", first)
    await berth.ends("instance", "resize", build, "--vcpus", "4")
    grown = await berth.ends("move", "confirm", build)
    assert grown["end"] == "done"

    assert (await berth.ends("instance", "rebuild", build, "--image", "alpine"))["host"] == grown["host"]
    assert (await berth.ends("instance", "shelve", build))["end"] == "done"
    await berth.clean()
    third = await berth.ends("instance", "unshelve", build)
    assert third["end"] == "done"

    fourth = await berth.ends(
        "instance", "move", build, "--to", first if third["host"] != first else second["host"]
    )
    assert fourth["end"] == "done"
    shown = await berth("move", "show", build)
    assert f"to {fourth['host']} in cell c1: ended done" in shown
    assert len((await berth("move", "list", "--all", "--json")).splitlines()) == 8
    assert "deleted" in await berth("delete", build, "--wait")
    await berth.clean()


async def test_a_waiting_move_is_listed_explained_cancelled_and_started(berth: LivingBerth) -> None:
    build, host = await berth.boot()
    there = "c1-host00001" if host != "c1-host00001" else "c1-host00002"
    await berth("host", "disable", there)
    would = await berth("instance", "move", build, "--to", there, "--dry-run", ends=1)
    assert f"{build}: no migrate: " in would and "no host would do" in would
    drained = await berth("host", "drain", host, "--dry-run")
    assert f"{host}: would be disabled, and 1 instances moved" in drained

    asked = a_move(1, build=build, wanted_host=there, wait="30m")
    await berth.bus.publish(asked)
    assert (await berth.waits(build)).request == asked.move
    assert f"migrate {asked.move} of {build}: waits for room" in await berth("why", asked.move)
    assert build in await berth("request", "list")
    assert f"{build} does not wait any more" in await berth("move", "abort", build)

    async def is_cancelled() -> bool:  # the refusal is published before the request is deleted
        return f"migrate {asked.move} of {build}: refused [cancelled]" in await berth("why", asked.move)

    await until(is_cancelled)

    following = asyncio.create_task(
        berth("instance", "move", build, "--to", there, "--live", "--wait", "30m")
    )
    await berth.waits(build)
    await berth("host", "enable", there)
    sent = await following
    assert f"{build} moved to {there}" in sent
    await berth("delete", build, "--wait")
    await berth.clean()


async def test_an_instance_moves_to_another_cell_and_back(opened: Opened) -> None:
    async with opened("c1", "c2", simulator={"hosts": 4}) as berth:
        await moved_between_cells(berth)


async def moved_between_cells(berth: LivingBerth) -> None:
    reply = await berth.ends("boot", "--vcpus", "2", "--image", "debian", "--cell", "c1")
    build, first = reply["build"], reply["host"]
    there = await berth.ends("instance", "move", build, "--to-cell", "c2")
    assert (there["end"], await berth.where(build)) == ("done", ("c2", "active"))
    assert there["host"] in await berth("why", build)
    shown = json.loads(await berth("move", "list", "--all", "--json"))
    assert (shown["cell"], shown["phase"], shown["at"]) == ("c2", "done", there["host"])
    await berth.clean()

    back = await berth.ends("instance", "resize", build, "--vcpus", "3", "--to", first)  # which is in c1
    assert (back["end"], back["host"]) == ("verifying", first)
    assert await berth.where(build) == ("c1", "verifying")
    reverted = await berth.ends("move", "revert", build)
    assert (reverted["end"], reverted["host"]) == ("reverted", there["host"])
    assert await berth.where(build) == ("c2", "active")

    await berth("host", "drain", "--cell", "c2", "--to-cell", "c1")
    assert await berth.where(build) == ("c1", "active")
    await berth.ends("instance", "shelve", build)
    awake = await berth.ends("instance", "unshelve", build, "--to-cell", "c2", ends=1)
    assert awake["end"] == "refused"  # its hosts are closed since they were drained
    assert "deleted" in await berth("delete", build, "--wait")
    await berth.clean()


WEB, DB, TWO_HOSTS = uid(1), uid(2), uid(3)


async def test_imported_instances_are_adopted_moved_drained_and_deleted(
    opened: Opened, tmp_path: Path
) -> None:
    async with opened("c1", simulator={"hosts": 3}, placement_http=f"127.0.0.1:{free_port()}") as berth:
        await adopted(berth, tmp_path / "servers.csv")


async def adopted(berth: LivingBerth, file: Path) -> None:
    first, second, third = (f"c1-host0000{number}" for number in (1, 2, 3))
    await berth.import_consumers({WEB: (first,), DB: (second,), TWO_HOSTS: (first, second)})
    file.write_text(f"ID,Name,Host,Flavor\n{WEB},web,{first},m1.small\n{DB},db,{second},m1.small\n")

    shown = await berth("instance", "adopt", "--all", "--from", str(file), ends=1)
    assert f"would be adopted: {WEB} web on {first} in cell c1 (10 DISK_GB, 512 MEMORY_MB, 2 VCPU)" in shown
    assert f"for you to judge: {TWO_HOSTS}: it holds something of 2 hosts" in shown
    assert (await audit(berth.settings)).builds == {}

    answer = json.loads(
        await berth("instance", "adopt", "--all", "--from", str(file), "--yes", "--json", ends=1)
    )
    assert {one["build"] for one in answer["adopted"]} == {WEB, DB}
    assert [*answer["listed"]] == [TWO_HOSTS]
    again = json.loads(await berth("instance", "adopt", WEB, "--yes", "--json"))
    assert (again["adopted"], [*again["known"]]) == ([], [WEB])
    assert "web" in await berth("instance", "list", "--host", first)
    assert "it was there before berth, and was adopted" in await berth("why", WEB)

    moved = await berth.ends("instance", "move", WEB, "--to", third)
    assert (moved["end"], moved["host"]) == ("done", third)
    assert "1 moved, none stays" in await berth("host", "drain", second)
    for build in (WEB, DB):
        assert "deleted" in await berth("delete", build, "--wait")

    async def clean() -> bool:
        found = await audit(berth.settings, settled=True)
        return found.clean and found.types == {"INSTANCE": 1} and found.of_other_owners == 1

    await until(clean, picture=lambda: audit(berth.settings, settled=True))
