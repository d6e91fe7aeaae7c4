"""`berth heal` repairs lost and wrong allocations in an embedded berth."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from berth import wiring
from berth.commands import audit as audit_command
from berth.commands import builds, moves
from berth.commands.run import ready
from berth.embedded import embedded
from berth.operations.audit import audit
from berth.settings import Settings
from bus import topics
from bus.claims import Choice, Claimed, ClaimRequested, ConsumerClaim, Released, ReleaseRequested
from bus.delivery.runner import Bus
from bus.local import LocalTransport
from bus.resources import Consumer, FindAllocations, FindProviders
from bus.vocabulary import Allocations
from tests.support.command_line import CommandLine

HOMES = {"boot": builds, "delete": builds, "heal": audit_command, "move": moves}


class BreakableBerth:
    def __init__(
        self, bus: Bus, settings: Settings, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.bus, self.settings, self._patch, self._capsys = bus, settings, patch, capsys

    async def __call__(self, *words: str, ends: int = 0) -> str:
        line = CommandLine(words[0], HOMES[words[0]], self._patch, self._capsys)
        return await line(*words[1:], ends=ends)

    async def breaches(self) -> list[str]:
        return (await audit(self.settings, settled=True)).breaches

    async def held(self, build: str) -> Consumer:
        [one] = (await self.bus.asker(topics.ALLOCATIONS)(FindAllocations(consumers=(build,)))).consumers
        return one

    async def loses(self, build: str) -> None:
        release = ReleaseRequested(consumer=build, generation=(await self.held(build)).generation)
        assert isinstance((await self.bus.asker(topics.RELEASE)(release)).result, Released)

    async def claims(self, build: str, allocations: Allocations) -> None:
        now = await self.held(build)
        claim = ConsumerClaim(
            consumer=build, generation=now.generation, choices=(Choice(allocations),), project=now.project,
            user=now.user,
        )  # fmt: skip
        answer = await self.bus.asker(topics.CLAIM)(ClaimRequested(claims=(claim,)))
        assert isinstance(answer.results[0], Claimed), answer

    async def root(self, host: str) -> str:
        [one] = (await self.bus.asker(topics.PROVIDERS)(FindProviders(name=host))).providers
        return one.id


@pytest.fixture
async def berth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> AsyncIterator[BreakableBerth]:
    monkeypatch.setenv("BERTH_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("BERTH_CELLS", "c1")
    settings = Settings().having(
        state_dir=str(tmp_path), cells=("c1",), hosts=2, build_time="constant:0.01", heartbeat=0.5
    )
    async with embedded(settings) as running:
        await ready(running.bus, settings)
        monkeypatch.setattr(wiring, "transport", lambda *_, **__: LocalTransport(running.broker))
        yield BreakableBerth(running.bus, settings, monkeypatch, capsys)


async def test_what_active_builds_have_lost_is_claimed_back_and_they_live_on(berth: BreakableBerth) -> None:
    first, second = "c1-host00001", "c1-host00002"
    booted: list[dict[str, Any]] = [
        json.loads((await berth("boot", "--host", first, "--wait", "--json")).splitlines()[-1])
        for _ in range(4)
    ]
    lost, elsewhere, bigger, behind = (str(one["build"]) for one in booted)
    before = {build: (await berth.held(build)).allocations for build in (lost, elsewhere, bigger, behind)}
    [(root, amounts)] = before[lost].items()
    await berth.loses(lost)
    await berth.claims(elsewhere, {await berth.root(second): amounts})
    await berth.claims(bigger, {root: {**amounts, "VCPU": amounts["VCPU"] + 3}})
    await berth.claims(behind, before[behind])
    assert len(await berth.breaches()) == 4

    shown = (await berth("heal", ends=1)).splitlines()
    assert Counter(line.partition(":")[0] for line in shown) == {
        "would be claimed back": 2,
        "would be claimed anew": 1,
        "would be told to its cell": 1,
        "`berth heal --yes` mends what is proven": 1,
    }
    assert len(await berth.breaches()) == 4

    await berth("heal", "--yes")
    assert await berth.breaches() == []
    assert {build: (await berth.held(build)).allocations for build in before} == before
    assert await berth("heal", "--yes") == "nothing is wrong\n"

    for build in before:
        moved = json.loads((await berth("move", build, "--wait", "--json")).splitlines()[-1])
        assert (moved["end"], moved["host"]) == ("done", second), moved
        assert "deleted" in await berth("delete", build, "--wait")


async def test_what_does_not_fit_any_more_is_listed_with_why(berth: BreakableBerth) -> None:
    host = "c1-host00001"
    build = str(
        json.loads((await berth("boot", "--host", host, "--wait", "--json")).splitlines()[-1])["build"]
    )
    [(root, _)] = (await berth.held(build)).allocations.items()
    [provider] = (await berth.bus.asker(topics.PROVIDERS)(FindProviders(ids=(root,)))).providers
    memory = provider.inventories["MEMORY_MB"]
    await berth.loses(build)
    everything = ConsumerClaim(
        consumer="00000000-0000-4000-8000-000000000001", generation=None,
        choices=(Choice({root: {"MEMORY_MB": memory.total - memory.reserved}}),), client=True,
    )  # fmt: skip
    answer = await berth.bus.asker(topics.CLAIM)(ClaimRequested(claims=(everything,)))
    assert isinstance(answer.results[0], Claimed), answer
    told = await berth("heal", "--yes", ends=1)
    assert told.startswith("not claimed back (it does not fit: ") and "MEMORY_MB, 0 free" in told
