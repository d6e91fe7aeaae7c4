"""The servers for tests: started on demand or given by the environment, with new databases; tests are skipped
without them.
"""

import asyncio
import os
import secrets
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import asyncpg
import pytest
from sqlalchemy.engine import make_url

from deploy.servers import BinariesMissing, Certificate, Postgres, RabbitMQ


def installed(find: Callable[[], object]) -> None:
    """Skip the test if `find` does not find a server's programs; in CI fail instead."""
    try:
        find()
    except BinariesMissing as missing:
        problem = str(missing)
    else:
        return
    if os.environ.get("CI"):
        pytest.fail(f"in CI the servers must be there: {problem}", pytrace=False)
    pytest.skip(problem)


def find_jq() -> str:
    """Return the path of `jq`, which commands of a page use, or raise BinariesMissing."""
    found = shutil.which("jq")
    if found is None:
        raise BinariesMissing("jq is not installed")
    return found


@dataclass(frozen=True)
class ExternalServer:
    """A server, given by its URL, that tests cannot stop or start."""

    url: str

    def _refuse(self) -> NoReturn:
        pytest.skip("the test stops and starts its server, and an external one was given")

    start = stop = restart = kill = _refuse


def url_of(server: RabbitMQ | Postgres | ExternalServer) -> str:
    """Return the server's URL; start a private server, which an earlier test may have stopped."""
    if isinstance(server, RabbitMQ | Postgres):
        server.start()
    return server.url


def crash(server: RabbitMQ | Postgres) -> None:
    server.kill()
    server.start()


@asynccontextmanager
async def a_database(postgres: Postgres | ExternalServer, like: str = "") -> AsyncIterator[str]:
    """Yield the SQLAlchemy URL of a new PostgreSQL database: empty, or a copy of the database `like`."""
    name = _new_name()
    template = f' TEMPLATE "{make_url(like).database}"' if like else ""
    await _execute(postgres, f'CREATE DATABASE "{name}"{template}')
    try:
        yield _address(postgres, name)
    finally:
        await _execute(postgres, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@contextmanager
def a_module_database(postgres: Postgres | ExternalServer) -> Iterator[str]:
    name = _new_name()
    asyncio.run(_execute(postgres, f'CREATE DATABASE "{name}"'))
    try:
        yield _address(postgres, name)
    finally:
        asyncio.run(_execute(postgres, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


def _new_name() -> str:
    return f"berth_test_{secrets.token_hex(6)}"


def _address(postgres: Postgres | ExternalServer, database: str) -> str:
    url = make_url(postgres.url).set(drivername="postgresql+asyncpg", database=database)
    return url.render_as_string(hide_password=False)


async def _execute(postgres: Postgres | ExternalServer, statement: str) -> None:
    server = make_url(url_of(postgres)).set(drivername="postgresql")
    connection = await asyncpg.connect(server.render_as_string(hide_password=False))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def rabbitmqctl_in(directory: Path, broker: RabbitMQ) -> Path:
    """Write the `rabbitmqctl` of this broker into the directory, and return its path."""
    control = directory / "rabbitmqctl"
    known = " ".join(shlex.quote(f"{name}={value}") for name, value in broker.environment().items())
    command = broker.binaries.server.with_name("rabbitmqctl")
    control.write_text(f'#!/bin/sh\nexec env -i {known} {command} "$@"\n')
    control.chmod(0o700)
    return control


_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o755)
        self.file = directory / "ca.pem"
        self._key = directory / "ca.key"
        self._signed = 0
        _openssl(
            "req", "-x509", *_CURVE, "-days", "2", "-subj", "/CN=An authority of a test",
            "-addext", "keyUsage=critical,keyCertSign,cRLSign", "-keyout", self._key, "-out", self.file,
        )  # fmt: skip

    def certificate(self, *names: str) -> Certificate:
        self._signed += 1
        place = self._directory / f"server-{self._signed}"
        made = Certificate(place.with_suffix(".pem"), place.with_suffix(".key"))
        request, reply = place.with_suffix(".csr"), place.with_suffix(".names")
        reply.write_text(f"subjectAltName={','.join(f'DNS:{name}' for name in names)}\n")
        _openssl("req", "-new", *_CURVE, "-subj", "/CN=server", "-keyout", made.key, "-out", request)
        _openssl(
            "x509", "-req", "-in", request, "-CA", self.file, "-CAkey", self._key, "-CAcreateserial",
            "-days", "2", "-extfile", reply, "-out", made.certificate,
        )  # fmt: skip
        return made


def _openssl(*arguments: object) -> None:
    command = ["openssl", *map(str, arguments)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
