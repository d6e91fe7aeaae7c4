"""`berth host headroom` over a placement with hosts."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from placement_worker.testing import Placement
from tests.support.command_line import CommandLine, a_served_placement
from tests.support.placement_builders import a_claim, a_report, an_order, on_hosts
from tests.support.placement_calls import report

Run = Callable[..., Awaitable[str]]


@pytest.fixture
async def placement(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Placement]:
    async with a_served_placement(monkeypatch, "c1") as placement:
        assert await report(placement, a_report(1), a_report(2)) == ["", ""]
        await placement.claims.claim_many([an_order(a_claim(2, on_hosts(1, VCPU=4)))])
        yield placement


@pytest.fixture
def run(placement: Placement, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return CommandLine("host headroom", monkeypatch, capsys)
