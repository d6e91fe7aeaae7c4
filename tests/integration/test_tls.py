"""RabbitMQ and PostgreSQL over TLS: a boot over both, and refused certificates."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from berth.database_logins import logins
from berth.loadtest import Load, LoadPlan
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.errors import Unavailable
from bus.rabbit import RabbitTransport
from bus.sql.database import Database
from deploy.servers import Postgres, RabbitMQ, find_postgres, private_directory
from tests.support.berth_processes import in_one_process
from tests.support.servers import Authority, ExternalServer, installed

pytestmark = [pytest.mark.services, pytest.mark.slow]

NOT_OURS = "its certificate is not believed: unable to get local issuer certificate"
NOT_ITS_NAME = (
    "its certificate is not believed: IP address mismatch, certificate is not valid for '127.0.0.1'"
)


class ByTls:
    def __init__(self, authority: Authority, rabbitmq: RabbitMQ, postgres: Postgres, stranger: Path) -> None:
        self.authority, self.stranger = authority, Authority(stranger)
        self.rabbitmq, self.postgres = rabbitmq, postgres

    def amqp(self, host: str = "localhost", believing: Path | None = None) -> str:
        ca = believing or self.authority.file
        return f"amqps://guest:guest@{host}:{self.rabbitmq.tls_port}/?cafile={ca}"

    def database(
        self, host: str = "localhost", believing: Path | None = None, mode: str = "verify-full"
    ) -> str:
        ca, server = believing or self.authority.file, self.postgres
        return (
            f"postgresql://{server.user}:{server.password}@{host}:{server.port}/{server.database}"
            f"?sslmode={mode}&sslrootcert={ca}"
        )


@pytest.fixture(scope="module")
def servers(authority: Authority | None, rabbitmq: RabbitMQ | ExternalServer) -> Iterator[ByTls]:
    if authority is None or isinstance(rabbitmq, ExternalServer):
        pytest.skip("there is no openssl, or RabbitMQ is somebody else's: no certificates of ours")
    installed(find_postgres)
    directory = private_directory("berth-tls-")
    try:
        certificate = authority.certificate("localhost")
        with Postgres(directory / "postgres", certificate=certificate) as postgres:
            rabbitmq.start()
            yield ByTls(authority, rabbitmq, postgres, directory / "stranger")
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def test_builds_are_booted_over_tls_alone(servers: ByTls, bus_name: str, tmp_path: Path) -> None:
    settings = Settings().having(
        amqp_url=servers.amqp(),
        database_url=servers.database(),
        exchange=bus_name,
        cells=("c1",),
        simulator={"hosts": 2, "build_time": "constant:0.01"},
        state_dir=str(tmp_path),
    )
    async with in_one_process(settings) as bus:
        assert (await Load(bus, LoadPlan(boots=5)).run()).statuses == {"active": 5}
    database = Database(servers.database())
    try:
        async with database.read() as tx:
            rows = await tx.fetch("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()", [])
        assert [row["ssl"] for row in rows] == [True]
    finally:
        await database.close()


@pytest.mark.parametrize(
    ("host", "stranger", "why"), [("127.0.0.1", False, NOT_ITS_NAME), ("localhost", True, NOT_OURS)]
)
async def test_an_untrusted_rabbitmq_is_refused_with_the_reason(
    servers: ByTls, host: str, stranger: bool, why: str
) -> None:
    url = servers.amqp(host, servers.stranger.file if stranger else None)
    with pytest.raises(Unavailable) as refused:
        async with Bus(RabbitTransport(url, patience=0.0)):
            pass
    place = f"RabbitMQ at guest@{host}:{servers.rabbitmq.tls_port}"
    address = "" if host == "127.0.0.1" else " (127.0.0.1)"
    assert f"{place}{address} cannot be reached: {why}" in str(refused.value)


@pytest.mark.parametrize(
    ("host", "stranger", "mode", "why"),
    [
        ("127.0.0.1", False, "verify-full", NOT_ITS_NAME),
        ("localhost", True, "verify-full", NOT_OURS),
        ("127.0.0.1", False, "verify-ca", ""),  # whatever it is called
    ],
)
async def test_an_untrusted_postgresql_is_refused_with_the_reason(
    servers: ByTls, host: str, stranger: bool, mode: str, why: str
) -> None:
    url = servers.database(host, servers.stranger.file if stranger else None, mode)
    database = Database(url)
    try:
        if not why:
            async with database.read() as tx:
                await tx.fetch("SELECT 1", [])
            return
        with pytest.raises(Unavailable, match=why):
            async with database.read():
                pass
        with pytest.raises(Unavailable):
            async with logins(url):
                pass
    finally:
        await database.close()


async def test_a_port_without_tls_is_reported(servers: ByTls) -> None:
    url = f"amqps://guest:guest@localhost:{servers.rabbitmq.port}/"
    with pytest.raises(Unavailable, match="it does not speak TLS there"):
        async with Bus(RabbitTransport(url, patience=0.0)):
            pass
