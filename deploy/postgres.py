"""Runs a private PostgreSQL: finds its programs and the account that must run it, and starts the server."""

from __future__ import annotations

import contextlib
import functools
import os
import pwd
import secrets
import shutil
import signal
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.processes import (
    BinariesMissing,
    Certificate,
    Server,
    ServerFailed,
    environment_without,
    exchange,
    executable,
    newest_first,
    search_path,
)

_HINT = "install it (`make services` does) or set BERTH_TEST_DATABASE_URL to a server to use"


@dataclass(frozen=True)
class PostgresBinaries:
    postgres: Path
    initdb: Path


def find_postgres() -> PostgresBinaries:
    places = [
        *newest_first(Path("/usr/lib/postgresql"), "*/bin"),  # Debian, Ubuntu
        *newest_first(Path("/usr"), "pgsql-*/bin"),  # PostgreSQL's own RPM packages
        *newest_first(Path("/opt/homebrew/opt"), "postgresql*/bin"),
        *newest_first(Path("/usr/local/opt"), "postgresql*/bin"),
        *(Path(entry) for entry in search_path().split(os.pathsep) if entry),
    ]
    for place in places:
        found = PostgresBinaries(place / "postgres", place / "initdb")
        if executable(found.postgres) and executable(found.initdb):
            return found
    raise BinariesMissing(f"no PostgreSQL server (postgres, initdb) on this machine: {_HINT}")


@functools.cache
def postgres_account() -> pwd.struct_passwd | None:
    """Return the account that runs PostgreSQL, if that is not the present user: PostgreSQL refuses root."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise ServerFailed("PostgreSQL does not run as root and there is no user `postgres` or `nobody`")


def first_closed(path: Path, account: pwd.struct_passwd) -> Path | None:
    """Return the first directory on the path that the account is not permitted to enter, or None."""
    for part in (*reversed(path.parents), path):
        status = part.stat()
        if status.st_uid == account.pw_uid:
            bit = 0o100
        elif status.st_gid == account.pw_gid:
            bit = 0o010
        else:
            bit = 0o001
        if not status.st_mode & bit:
            return part
    return None


class Postgres(Server):
    """A PostgreSQL cluster with one database, `berth`, and password authentication."""

    name = "PostgreSQL"
    user = "berth"
    database = "berth"

    def __init__(
        self,
        directory: Path,
        certificate: Certificate | None = None,
        options: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, certificate)
        self._options = dict(options or {})  # configuration parameters
        self._data = self.directory / "data"
        self._sockets = self.directory / "run"
        self._password_path = self.directory / "password"
        self._password: str | None = None

    @property
    def password(self) -> str:
        if self._password is None:
            self.directory.mkdir(parents=True, exist_ok=True)
            if not self._password_path.exists():
                self._password_path.touch(mode=0o600)
                self._password_path.write_text(secrets.token_hex(16))
            self._password = self._password_path.read_text()
        return self._password

    @property
    def url(self) -> str:
        return f"postgresql+asyncpg://{self.user}:{self.password}@127.0.0.1:{self.port}/{self.database}"

    def _launch(self) -> None:
        binaries = find_postgres()
        self._prepare_directory()
        if not (self._data / "PG_VERSION").exists():
            self._initialise(binaries)
        # A Unix socket's path may have about 100 characters; with a longer path only TCP is used.
        sockets = str(self._sockets) if len(os.fsencode(self._sockets)) < 85 else ""
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": sockets,
            "max_connections": "200",
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
            "logging_collector": "off",
        }
        if self.certificate is not None:
            settings |= {"ssl": "on", **self._own_certificate(self.certificate)}
        settings |= self._options
        options = [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        self._serve([str(binaries.postgres), "-D", str(self._data), *options], watchdog="QUIT")

    def _own_certificate(self, certificate: Certificate) -> dict[str, str]:
        """Copy the certificate into the server's directory, because PostgreSQL requires a private key that
        only its owner can read.
        """
        account, found = postgres_account(), {}
        for setting, path in (("ssl_cert_file", certificate.certificate), ("ssl_key_file", certificate.key)):
            copy = self._sockets / path.name
            copy.touch(mode=0o600)
            copy.write_bytes(path.read_bytes())
            if account is not None:
                os.chown(copy, account.pw_uid, account.pw_gid)
            found[setting] = str(copy)
        return found

    def _prepare_directory(self) -> None:
        account = postgres_account()
        for made in (self._data, self._sockets):
            made.mkdir(mode=0o700, exist_ok=True)
            if account is not None:
                os.chown(made, account.pw_uid, account.pw_gid)
        if account is not None:
            # Let the account enter this directory, but not its parents, which may belong to another user.
            self.directory.chmod(self.directory.stat().st_mode | 0o011)
            closed = first_closed(self.directory, account)
            if closed is not None:
                raise ServerFailed(
                    f"started by root, PostgreSQL runs as {account.pw_name}, who cannot pass through "
                    f"{closed}; give a directory all of whose parents are open to others (mode o+x)"
                )

    def _initialise(self, binaries: PostgresBinaries) -> None:
        password_file = self._sockets / "initial-password"
        password_file.touch(mode=0o600)
        password_file.write_text(self.password)
        account = postgres_account()
        if account is not None:
            os.chown(password_file, account.pw_uid, account.pw_gid)
        initdb = [
            str(binaries.initdb),
            f"--pgdata={self._data}",
            f"--username={self.user}",
            f"--pwfile={password_file}",
            "--auth=scram-sha-256",
            "--encoding=UTF8",
            "--no-locale",
            "--no-sync",  # of the new, empty files only; the running server syncs as always
        ]
        # In single-user mode, so that neither psql nor a driver is needed.
        create = [str(binaries.postgres), "--single", "-D", str(self._data), "postgres"]
        try:
            self._run(initdb)
            self._run(create, feed=f"CREATE DATABASE {self.database}\n".encode())
        except BaseException:
            shutil.rmtree(self._data, ignore_errors=True)
            raise
        finally:
            password_file.unlink(missing_ok=True)

    def _spawn(
        self, command: Sequence[str], environment: Mapping[str, str] | None, **options: Any
    ) -> subprocess.Popen[bytes]:
        environment = environment_without("PG", "LC_") | {"LC_ALL": "C"}
        if (account := postgres_account()) is not None:
            options |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        return super()._spawn(command, environment, cwd=self._data, **options)

    def _ready(self) -> bool:
        # A start-up packet (protocol 3.0); "R" requests the password, "E" means "starting up".
        fields = b"user\0" + self.user.encode() + b"\0database\0" + self.database.encode() + b"\0\0"
        packet = struct.pack("!ii", 8 + len(fields), 3 << 16) + fields
        return exchange(self.port, packet, 1) == b"R"

    def _signal_processes(self, graceful: bool) -> None:
        # the next start. Not SIGKILL: the backends, with separate sessions, would remain for a moment
        assert self._process is not None
        self._process.send_signal(signal.SIGINT if graceful else signal.SIGQUIT)
