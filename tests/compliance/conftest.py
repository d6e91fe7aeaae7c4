"""Fixtures of the compliance tests, which run in a separate environment: `make compliance`."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec

import pytest

from tests.compliance.api import PlacementApi, empty
from tests.compliance.serving import PROFILES, Servers

# In the project's own environment there is no OpenStack Placement, and nothing here to run.
collect_ignore_glob = [] if find_spec("placement") else ["test_*.py"]


SQLITE = next(profile for profile in PROFILES if profile.store == "sqlite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--subject", choices=("berth", "placement"), default="berth", help="whom to test; to check the tests"
    )
    parser.addoption("--hostile", type=int, default=5000, help="how many bad requests to send")
    parser.addoption("--seed", type=int, default=1, help="of the bad requests")
    parser.addoption("--worlds", type=int, default=4, help="how many random worlds to compare")


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> Iterator[Servers]:
    with Servers(request.config.getoption("--subject")) as servers:
        yield servers


@pytest.fixture(scope="session")
def subject_url(servers: Servers) -> Iterator[str]:
    """The address of a running berth."""
    profile = PROFILES[0] if servers.kind == "berth" else SQLITE
    with servers.start(profile) as url:
        yield url


@pytest.fixture(scope="session")
def original_url(servers: Servers) -> Iterator[str]:
    """The address of a running OpenStack Placement; on PostgreSQL its usages fail."""
    with servers.start(SQLITE, "placement") as url:
        yield url


@pytest.fixture
def api(subject_url: str) -> Iterator[PlacementApi]:
    """A client of the berth, which is empty."""
    api = PlacementApi(subject_url)
    empty(api)
    yield api
    api.close()


@pytest.fixture
def original(original_url: str) -> Iterator[PlacementApi]:
    """A client of the OpenStack Placement, which is empty."""
    api = PlacementApi(original_url)
    empty(api)
    yield api
    api.close()
