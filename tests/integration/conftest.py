"""Private servers of one test (RabbitMQ nodes, a PostgreSQL with a standby), and embedded berths."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.rabbitmq import RabbitMQCluster
from deploy.servers import Postgres, find_postgres, find_rabbitmq, private_directory
from tests.support.living_berth import Opened, opening_berths
from tests.support.servers import installed
from tests.support.standby import Standby


@pytest.fixture
def directory() -> Iterator[Path]:
    made = private_directory("berth-test-")
    yield made
    shutil.rmtree(made, ignore_errors=True)


@pytest.fixture
def brokers(directory: Path) -> Iterator[RabbitMQCluster]:
    installed(find_rabbitmq)
    with RabbitMQCluster(directory / "rabbitmq") as cluster:
        yield cluster


@pytest.fixture
def primary(directory: Path) -> Iterator[Postgres]:
    installed(find_postgres)
    with Postgres(directory / "primary") as server:
        yield server


@pytest.fixture
def standby(directory: Path, primary: Postgres) -> Iterator[Standby]:
    with Standby(directory / "standby", primary) as server:
        yield server


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Opened:
    return opening_berths(tmp_path, monkeypatch, capsys)
