"""Starts servers of the Placement API on loopback ports: berth's, or OpenStack Placement.

OpenStack Placement and its WSGI server come from the environment that `make compliance` builds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from deploy.processes import Server, environment_without, exchange

ROOT = Path(__file__).resolve().parent.parent
# This process runs in one of the two environments; the Makefile creates the other at this path.
_APART = find_spec("placement") is not None
BERTH = ROOT / ".venv/bin/python" if _APART else Path(sys.executable)
COMPLIANCE = Path(sys.executable) if _APART else ROOT / ".venv-compliance/bin/python"
_CORS_HEADER = "openstack-api-version"

Kind = Literal["berth", "placement"]


@dataclass(frozen=True)
class KeystoneUser:
    """A user of a Keystone, in the domain Default."""

    auth_url: str
    username: str
    password: str
    project: str

    @property
    def options(self) -> dict[str, str]:
        """Return the user's credentials as options of keystoneauth1's plugin `password`."""
        return {
            "auth_url": self.auth_url, "username": self.username, "password": self.password,
            "project_name": self.project, "user_domain_name": "Default", "project_domain_name": "Default",
        }  # fmt: skip


@dataclass(frozen=True)
class ApiAccess:
    """Options by which a server authenticates and authorises clients: Keystone or none, policy, CORS."""

    strict: bool = False  # enforce only the new default policy
    policy: str = ""  # the text of a policy file
    cors_origin: str = ""  # origins permitted by CORS
    keystone: KeystoneUser | None = None  # the user with which the server checks tokens; None: noauth2


class HttpServer(Server):
    """Base class of private HTTP servers, which are ready as soon as they answer `/`."""

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _ready(self) -> bool:
        request = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        return exchange(self.port, request, 12).endswith(b"200")


class BerthPlacement(HttpServer):
    """Runs `berth run placement` as a process, by default without a RabbitMQ."""

    name = "berth"

    def __init__(
        self, directory: Path, database_url: str, access: ApiAccess | None = None, bus: str = "local"
    ) -> None:
        super().__init__(directory)
        self._database_url = database_url
        self._access = access or ApiAccess()
        self._bus = bus  # the URL of a RabbitMQ, or local

    def _launch(self) -> None:
        command = [
            str(BERTH), "-m", "berth", "run", "placement", "--bus", self._bus,
            "--auth", "keystone" if self._access.keystone else "noauth2",
            "--http", f"127.0.0.1:{self.port}", "--database", self._database_url,
        ]  # fmt: skip
        environment = environment_without("BERTH_", "OS_") | {
            "PYTHONPATH": str(ROOT),
            "BERTH_PLACEMENT_ENFORCE_NEW_DEFAULTS": str(self._access.strict).lower(),
        }
        if self._access.keystone:
            environment["BERTH_PLACEMENT_CLOUD"] = "envvars"
            options = self._access.keystone.options
            environment |= {f"OS_{name.upper()}": value for name, value in options.items()}
        if self._access.cors_origin:
            environment["BERTH_PLACEMENT_CORS_ORIGINS"] = self._access.cors_origin
        if self._access.policy:
            policy = self.directory / "policy.yaml"
            policy.write_text(self._access.policy)
            command += ["--policy", str(policy)]
        self._serve(command, environment)


class OpenStackPlacement(HttpServer):
    """Runs OpenStack Placement from its published package, in one process of gunicorn."""

    name = "placement"

    def __init__(
        self, directory: Path, database_url: str, access: ApiAccess | None = None, python: Path = COMPLIANCE
    ) -> None:
        super().__init__(directory)
        self._python = python
        self._database_url = database_url.replace("+asyncpg", "+psycopg2").replace("+aiosqlite", "")
        self._access = access or ApiAccess()

    def _launch(self) -> None:
        settings = self.directory / "placement.conf"
        policy = self.directory / "policy.yaml"
        policy.write_text(self._access.policy)
        lines = [
            "[DEFAULT]", "log_dir =",
            "[api]", f"auth_strategy = {'keystone' if self._access.keystone else 'noauth2'}",
            "[placement_database]", f"connection = {self._database_url}",
            "[oslo_policy]", f"enforce_new_defaults = {self._access.strict}", f"policy_file = {policy}",
            "enforce_scope = true",
        ]  # fmt: skip
        if self._access.cors_origin:
            lines += [
                "[cors]",
                f"allowed_origin = {self._access.cors_origin}",
                f"allow_headers = {_CORS_HEADER}",
            ]
        if (user := self._access.keystone) is not None:
            options = user.options | {"auth_type": "password", "www_authenticate_uri": user.auth_url}
            lines += ["[keystone_authtoken]", *(f"{name} = {value}" for name, value in options.items())]
        settings.write_text("\n".join(lines) + "\n")
        environment = environment_without("BERTH_", "OS_") | {
            "OS_PLACEMENT_CONFIG_DIR": str(self.directory), "PYTHONWARNINGS": "ignore",
        }  # fmt: skip
        manage = str(self._python.with_name("placement-manage"))
        self._run([manage, "--config-file", str(settings), "db", "sync"], environment)
        at = f"127.0.0.1:{self.port}"
        # SQLite refuses one of two transactions that begin to write after they have read
        threads = "1" if self._database_url.startswith("sqlite") else "8"
        serve = [
            str(self._python.with_name("gunicorn")), "--bind", at, "--keep-alive", "60",
            "--worker-class", "gthread", "--threads", threads, "placement.wsgi.api:application",
        ]  # fmt: skip
        self._serve(serve, environment)
