"""One browser and one read-only berth for all tests of this folder; each test gets a new session."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from compute_sim.ironic.simulation import Simulation
from tests.support.browser_tab import Tab, a_tab
from tests.support.chromium import Chromium, a_chromium, find_chromium
from tests.support.open_berth import OpenBerth, an_open_berth
from tests.support.servers import installed
from tests.support.simulated_ironic import a_served_ironic

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The browser is spoken with in one event loop, which is everybody's."""
    for item in items:
        if item.path.is_relative_to(_HERE):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def chromium() -> AsyncIterator[Chromium]:
    installed(find_chromium)
    async with a_chromium() as browser:
        yield browser


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def ironic() -> AsyncIterator[Simulation]:
    async with a_served_ironic() as simulation:
        yield simulation


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def berth(tmp_path_factory: pytest.TempPathFactory, ironic: Simulation) -> AsyncIterator[OpenBerth]:
    async with an_open_berth(tmp_path_factory.mktemp("berth"), ironic) as opened:
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def tab(chromium: Chromium, berth: OpenBerth) -> AsyncIterator[Tab]:
    async with a_tab(chromium, berth.url) as opened:
        yield opened


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def _operator(chromium: Chromium, berth: OpenBerth) -> AsyncIterator[Tab]:
    async with a_tab(chromium, berth.url) as opened:
        await opened.sign_in("admin")
        yield opened


@pytest_asyncio.fixture(loop_scope="session")
async def operator(_operator: Tab) -> AsyncIterator[Tab]:
    yield _operator
    await _operator.wide(1280)
    await _operator.colours("light")
    await _operator.heard_out()
    _operator.judged()
