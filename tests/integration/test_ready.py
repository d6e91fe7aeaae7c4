"""A berth is reported as up once a build request finds all workers that it needs."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from berth import worker_roles
from berth.commands import run
from berth.readiness import Startup
from berth.services import EmbeddedBerth, embedded
from berth.settings import Settings
from bus.errors import Unavailable


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings().having(state_dir=str(tmp_path), cells=("c1", "c2"), simulator={"hosts": 2})


@pytest.fixture
async def berth(
    request: pytest.FixtureRequest, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[EmbeddedBerth]:
    """One in which a worker does not start."""
    all_roles = worker_roles.roles_of(settings)
    monkeypatch.setattr(
        worker_roles, "roles_of", lambda _: [role for role in all_roles if role != request.param]
    )
    async with embedded(settings) as running:
        yield running


@pytest.mark.parametrize(
    ("berth", "why"),
    [
        (worker_roles.Role("conductor", "c2"), "the conductor of cell c2 does not answer"),
        (worker_roles.Role("scheduler"), "no scheduler answers"),
    ],
    indirect=["berth"],
    ids=["without a cell's conductor", "without a scheduler"],
)
async def test_berth_is_not_ready_without_all_workers(
    berth: EmbeddedBerth, settings: Settings, why: str
) -> None:
    if "cell c2" in why:
        await run.ready(berth.bus, settings.having(cells=("c1",)))
    else:
        await run.hosts_known(berth.bus, settings)
    with pytest.raises(Unavailable, match=why):
        await run.ready(berth.bus, settings, Startup(quiet=1.5))
