"""Starts the tested servers, berth and OpenStack Placement, each with a new database."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

from deploy.placement import ApiAccess, BerthPlacement, Kind, OpenStackPlacement
from deploy.servers import Postgres, private_directory

ORIGIN = "http://valid.example.com"

Store = Literal["postgresql", "sqlite"]


@dataclass(frozen=True)
class Profile:
    name: str
    store: Store = "postgresql"
    endings: tuple[str, ...] = ()
    tests: int = 0  # how many there are at least
    strict: bool = False  # the new policy alone
    open: bool = False  # everybody may do everything
    cors: bool = False

    @property
    def access(self) -> ApiAccess:
        policy = open_rules() if self.open else ""
        return ApiAccess(strict=self.strict, policy=policy, cors_origin=ORIGIN if self.cors else "")

    def needed_by(self, file: str) -> bool:
        return tuple(ending for ending in _SPECIAL if f"/{file}".endswith(ending)) == self.endings


_SPECIAL = ("-secure-rbac", "-policy", "/cors")
PROFILES = (
    Profile("base, PostgreSQL", tests=1003),
    Profile("base, SQLite", store="sqlite", tests=1003),
    Profile("secure", endings=("-secure-rbac",), tests=268, strict=True),
    Profile("open", endings=("-policy",), tests=41, open=True),
    Profile("cors", endings=("/cors",), tests=4, cors=True),
)


def open_rules() -> str:
    """A policy file that lets everybody do everything."""
    from placement import policies  # of the compliance environment

    names = sorted(rule.name for rule in policies.list_rules() if rule.name.startswith("placement:"))
    return "".join(f'"{name}": "@"\n' for name in names)


class Servers:
    """Starts what is to be tested; the PostgreSQL they share is started when first needed."""

    def __init__(self, kind: Kind = "berth") -> None:
        self.kind = kind
        self.directory = private_directory("berth-compliance-")
        self._postgres: Postgres | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._postgres is not None:
            self._postgres.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def database(self, store: Store) -> str:
        """The URL of a new, empty database."""
        name = f"d{secrets.token_hex(6)}"
        if store == "sqlite":
            return f"sqlite+aiosqlite:///{self.directory / name}.db"
        import psycopg2  # of the compliance environment

        if self._postgres is None:
            self._postgres = Postgres(self.directory / "postgres")
            self._postgres.start()
        base, _, _ = self._postgres.url.rpartition("/")
        connection = psycopg2.connect(self._postgres.url.replace("+asyncpg", ""))
        connection.autocommit = True
        with contextlib.closing(connection), connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        return f"{base}/{name}"

    @contextlib.contextmanager
    def start(self, profile: Profile = PROFILES[0], kind: Kind | None = None) -> Iterator[str]:
        """Its address, while the block runs."""
        server = BerthPlacement if (kind or self.kind) == "berth" else OpenStackPlacement
        directory = self.directory / f"server-{secrets.token_hex(4)}"
        with server(directory, self.database(profile.store), profile.access) as running:
            yield running.base_url


if __name__ == "__main__":
    with Servers(sys.argv[1] if sys.argv[1:] else "berth") as servers, servers.start() as url:  # type: ignore[arg-type]
        print(url, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
