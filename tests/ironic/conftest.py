"""A real Ironic for the whole run, and a new berth for each test."""

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from deploy.ironic import Drivers, IronicServer, find_ironic
from deploy.servers import RabbitMQ, find_rabbitmq, private_directory
from tests.ironic.cloud import IronicCloud, ironic_cloud
from tests.support.servers import installed

FAULTY = Drivers(
    path=Path(__file__).parent / "drivers",
    interfaces={"power": "faulty = berth_faulty:FaultyPower", "deploy": "faulty = berth_faulty:FaultyDeploy"},
)
IMPATIENT = {
    "conductor": {
        "sync_power_state_interval": "1",
        "power_state_sync_max_retries": "1",
        "power_failure_recovery_interval": "1",
        "node_locked_retry_attempts": "3",
    }
}


@pytest.fixture(scope="session")
def directory() -> Iterator[Path]:
    made = private_directory("berth-ironic-")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session")
def broker(directory: Path) -> Iterator[RabbitMQ]:
    installed(find_rabbitmq)
    with RabbitMQ(directory / "rabbitmq") as server:
        yield server


@pytest.fixture(scope="session")
def ironic(directory: Path, broker: RabbitMQ) -> Iterator[IronicServer]:
    installed(find_ironic)
    with IronicServer(directory / "ironic", broker.url, drivers=FAULTY, settings=IMPATIENT) as server:
        yield server


@pytest.fixture
async def cloud(
    ironic: IronicServer, broker: RabbitMQ, database_url: str, bus_name: str
) -> AsyncIterator[IronicCloud]:
    """The cloud, with every node that a test has left in it removed when it ends."""
    async with ironic_cloud(ironic, broker.url, database_url, bus_name, kind=bus_name) as made:
        yield made
        for uuid in made.nodes:
            await made.remove(uuid)
