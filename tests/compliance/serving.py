"""The servers that are tested: berth, and OpenStack Placement itself; on loopback, each with a new database.

Only the standard library is used to start them; the package `openstack-placement` and a WSGI server are
looked for in the environment that `make compliance` builds.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, Self

from deploy.processes import Server, Watchdog, exchange
from deploy.servers import Postgres, private_directory

ROOT = Path(__file__).parent.parent.parent
# We run in one of the two environments, whatever it is called; the other is where the Makefile puts it.
_APART = find_spec("placement") is not None
BERTH = ROOT / ".venv/bin/python" if _APART else Path(sys.executable)
COMPLIANCE = Path(sys.executable) if _APART else ROOT / ".venv-compliance/bin/python"
ORIGIN = "http://valid.example.com"
HEADER = "openstack-api-version"

Kind = Literal["berth", "placement"]
Store = Literal["postgresql", "sqlite"]


@dataclass(frozen=True)
class Profile:
    """How a server is set up, and whose tests those are."""

    name: str
    store: Store = "postgresql"
    endings: tuple[str, ...] = ()  # of the names of the files, after a slash; none: all the others
    tests: int = 0  # how many there are at least
    strict: bool = False  # the new policy alone
    open: bool = False  # everybody may do everything
    cors: bool = False

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


class HttpServer(Server):
    """A server that answers `/` on its port."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.directory.mkdir(parents=True, exist_ok=True)

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _run(self, command: list[str], environment: Mapping[str, str]) -> None:
        strange = {
            name: value for name, value in os.environ.items() if not name.startswith(("BERTH_", "OS_"))
        }
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={**strange, **environment},
                start_new_session=True,
            )
        self._watchdog = Watchdog("TERM", self._process.pid)

    def _ready(self) -> bool:
        request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        return exchange(self.port, request, 12).endswith(b"200")

    def _signal_processes(self, graceful: bool) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM if graceful else signal.SIGKILL)


class Berth(HttpServer):
    """`berth run placement`, as a process of its own, without any other service."""

    name = "berth"

    def __init__(self, directory: Path, database_url: str, profile: Profile = PROFILES[0]) -> None:
        super().__init__(directory)
        self._database_url = database_url
        self._profile = profile

    def _launch(self) -> None:
        command = [
            str(BERTH), "-m", "berth", "run", "placement", "--bus", "local", "--auth", "noauth2",
            "--http", f"127.0.0.1:{self.port}", "--database", self._database_url,
        ]  # fmt: skip
        environment = {
            "PYTHONPATH": str(ROOT),
            "BERTH_PLACEMENT_ENFORCE_NEW_DEFAULTS": str(self._profile.strict).lower(),
        }
        if self._profile.cors:
            environment["BERTH_PLACEMENT_CORS_ORIGINS"] = ORIGIN
        if self._profile.open:
            policy = self.directory / "policy.yaml"
            policy.write_text(open_rules())
            command += ["--policy", str(policy)]
        self._run(command, environment)


def open_rules() -> str:
    """A policy file that lets everybody do everything."""
    from placement import policies  # of the compliance environment

    names = sorted(rule.name for rule in policies.list_rules() if rule.name.startswith("placement:"))
    return "".join(f'"{name}": "@"\n' for name in names)


class OpenStackPlacement(HttpServer):
    """OpenStack Placement from its published package.

    With so many processes uWSGI serves it: the fastest, if clients do not keep their connections. Else one
    of gunicorn's: the most correct.
    """

    name = "placement"

    def __init__(
        self, directory: Path, database_url: str, profile: Profile = PROFILES[0], processes: int = 0
    ) -> None:
        super().__init__(directory)
        self._database_url = database_url.replace("+asyncpg", "+psycopg2").replace("+aiosqlite", "")
        self._profile = profile
        self._processes = processes

    def _launch(self) -> None:
        settings = self.directory / "placement.conf"
        policy = self.directory / "policy.yaml"
        policy.write_text(open_rules() if self._profile.open else "")
        lines = [
            "[DEFAULT]", "log_dir =", "[api]", "auth_strategy = noauth2",
            "[placement_database]", f"connection = {self._database_url}",
            "[oslo_policy]", f"enforce_new_defaults = {self._profile.strict}", f"policy_file = {policy}",
            "enforce_scope = true",
        ]  # fmt: skip
        if self._profile.cors:
            lines += ["[cors]", f"allowed_origin = {ORIGIN}", f"allow_headers = {HEADER}"]
        settings.write_text("\n".join(lines) + "\n")
        environment = {"OS_PLACEMENT_CONFIG_DIR": str(self.directory), "PYTHONWARNINGS": "ignore"}
        manage = [str(COMPLIANCE.with_name("placement-manage")), "--config-file", str(settings), "db", "sync"]
        made = subprocess.run(manage, capture_output=True, text=True, env={**os.environ, **environment})
        if made.returncode:
            raise RuntimeError(f"placement-manage db sync: {made.stderr[-2000:]}")
        at = f"127.0.0.1:{self.port}"
        if self._processes:
            serve = [
                str(COMPLIANCE.with_name("uwsgi")), "--http-socket", at, "--processes", str(self._processes),
                "--module", "placement.wsgi.api:application", "--master", "--need-app", "--lazy-apps",
                "--die-on-term", "--disable-logging", "--virtualenv", str(COMPLIANCE.parent.parent),
            ]  # fmt: skip
        else:
            serve = [
                str(COMPLIANCE.with_name("gunicorn")), "--bind", at, "--keep-alive", "60", "--threads", "8",
                "placement.wsgi.api:application",
            ]  # fmt: skip
        self._run(serve, environment)


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
        server = Berth if (kind or self.kind) == "berth" else OpenStackPlacement
        directory = self.directory / f"server-{secrets.token_hex(4)}"
        with server(directory, self.database(profile.store), profile) as running:
            yield running.base_url


if __name__ == "__main__":
    with Servers(sys.argv[1] if sys.argv[1:] else "berth") as servers, servers.start() as url:  # type: ignore[arg-type]
        print(url, flush=True)
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
