"""`berth resource pool`: resources that hosts share."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from berth.kit import BadSetting
from bus.claims import Claimed
from bus.errors import OperationRefused
from features.pools import commands as pools
from placement_worker.testing import Placement
from tests.support.command_line import CommandLine, a_served_placement
from tests.support.ids import uid
from tests.support.placement_builders import a_claim, a_release, a_report, an_order, looking_for
from tests.support.placement_calls import claim, report

NFS = ("create", "nfs", "--resource", "DISK_GB=100", "--reserved", "DISK_GB=10")
Pool = Callable[..., Awaitable[str]]


@pytest.fixture
async def placement(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Placement]:
    """Yield a placement with three hosts without disks."""
    async with a_served_placement(monkeypatch, "c1") as placement:
        assert await report(placement, *(a_report(number) for number in (1, 2, 3))) == [""] * 3
        yield placement


@pytest.fixture
def pool(placement: Placement, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Pool:
    return CommandLine("resource pool", monkeypatch, capsys)


async def hosts_with(placement: Placement, **resources: int) -> set[str]:
    found = await placement.find_candidates(looking_for(resources))
    return {candidate.host for candidate in found.candidates}


async def test_hosts_of_a_pool_have_its_resources(placement: Placement, pool: Pool) -> None:
    assert "pool nfs: made" in await pool(*NFS, "--host", "host-1", "--host", "host-2")
    assert await hosts_with(placement, VCPU=1, DISK_GB=90) == {"host-1", "host-2"}
    assert await hosts_with(placement, VCPU=1, DISK_GB=91) == set()
    await pool(*NFS, "--host", "host-3")  # added
    assert await hosts_with(placement, VCPU=1, DISK_GB=90) == {"host-1", "host-2", "host-3"}
    [row] = [json.loads(line) for line in (await pool("list", "--json")).splitlines()]
    assert (row["name"], row["hosts"], row["inventories"]) == (
        "nfs", 3, {"DISK_GB": {"used": 0, "capacity": 90}}
    )  # fmt: skip


async def test_a_pool_that_instances_use_stays(placement: Placement, pool: Pool) -> None:
    await pool(*NFS, "--host", "host-1")
    holds = {uid(1, "a"): {"VCPU": 1}, pools.id_of("nfs"): {"DISK_GB": 20}}
    [claimed] = await claim(placement, an_order(a_claim(1, holds)))
    assert isinstance(claimed, Claimed)
    assert "DISK_GB 20/90" in await pool("list")
    for dry_run in (("--dry-run",), ()):
        with pytest.raises(OperationRefused, match="instances use pool nfs"):
            await pool("delete", "nfs", *dry_run)
    await placement.claims.release_many([a_release(1, claimed.generation)])
    assert "pool nfs: would be deleted; " in await pool("delete", "nfs", "--dry-run")
    assert "nfs" in await pool("list")
    assert "deleted" in await pool("delete", "nfs")
    assert await pool("list") == "no pool\n"
    assert "made" in await pool(*NFS, "--host", "host-2")
    assert await hosts_with(placement, VCPU=1, DISK_GB=1) == {"host-2"}


@pytest.mark.parametrize(
    ("words", "error", "why"),
    [
        (("create", "p"), BadSetting, "give the pool's resources"),
        (("create", "p", "--resource", "disk=1"), BadSetting, "takes CLASS=AMOUNT"),
        ((*NFS, "--reserved", "VCPU=1", "--host", "host-1"), BadSetting, "--reserved VCPU"),
        (NFS, BadSetting, "name the hosts that use it"),
        ((*NFS, "--host", "host-9"), OperationRefused, "host-9"),
        ((*NFS, "--aggregate", "none"), OperationRefused, "no aggregate"),
        (("delete", "none"), OperationRefused, "there is no pool none"),
        (("delete", "none", "--dry-run"), OperationRefused, "there is no pool none"),
    ],
)
async def test_invalid_input_is_refused(
    pool: Pool, words: tuple[str, ...], error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        await pool(*words)
