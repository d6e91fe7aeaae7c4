"""A private OpenStack Keystone on a loopback port.

It comes from the environment of `make compliance` or of `make nova-test`. It keeps users, projects and
revoked tokens in an SQLite file. Its user `admin` has the role admin on the project `admin`; the other users
and projects are made over its API.
"""

from __future__ import annotations

import base64
import os
import secrets
from pathlib import Path

from deploy.placement import COMPLIANCE, HttpServer, KeystoneUser
from deploy.processes import environment_without, exchange

REGION = "RegionOne"


class KeystoneServer(HttpServer):
    name = "Keystone"

    def __init__(self, directory: Path, *, token_seconds: int = 3600, python: Path = COMPLIANCE) -> None:
        """`python`: the interpreter of an environment in which Keystone and gunicorn are installed."""
        super().__init__(directory)
        self._python = python
        self.password = secrets.token_hex(8)
        self._configuration = self.directory / "keystone.conf"
        self.token_seconds = token_seconds  # how long tokens of the next start are valid

    @property
    def url(self) -> str:
        return f"{self.base_url}/v3"

    @property
    def admin(self) -> KeystoneUser:
        return KeystoneUser(self.url, "admin", self.password, "admin")

    def _ready(self) -> bool:
        request = b"GET /v3 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        return exchange(self.port, request, 12).endswith(b"200")

    def _launch(self) -> None:
        known = self._configuration.exists()
        self._configure()
        if not known:
            self._prepare()
        # Keystone reads the options of its process: they are in a file that gunicorn finds by itself. Each
        # sign-in writes to SQLite, which refuses simultaneous writes, so one thread handles all requests.
        options = {
            "wsgi_app": "keystone.wsgi.api:application", "bind": f"127.0.0.1:{self.port}", "threads": 1,
            "worker_class": "gthread", "keepalive": 60, "loglevel": "warning",
        }  # fmt: skip
        lines = "".join(f"{name} = {value!r}\n" for name, value in options.items())
        (self.directory / "gunicorn.conf.py").write_text(lines)
        environment = environment_without("BERTH_", "OS_")
        environment["OS_KEYSTONE_CONFIG_DIR"] = str(self.directory)
        self._serve([str(self._python), "-m", "gunicorn"], environment)

    def _configure(self) -> None:
        lines = (
            "[DEFAULT]", "use_stderr = true",
            "[database]", f"connection = sqlite:///{self.directory / 'keystone.sqlite'}?timeout=60",
            "[fernet_tokens]", f"key_repository = {self.directory / 'fernet-keys'}",
            "[fernet_receipts]", f"key_repository = {self.directory / 'fernet-keys'}",
            "[credential]", f"key_repository = {self.directory / 'credential-keys'}",
            "[token]", f"expiration = {self.token_seconds}", "allow_expired_window = 3600",
            "[identity]", "password_hash_rounds = 4", "[cache]", "enabled = false",
        )  # fmt: skip
        self._configuration.write_text("\n".join(lines) + "\n")

    def _prepare(self) -> None:
        for name in ("fernet-keys", "credential-keys"):
            keys = self.directory / name
            keys.mkdir(mode=0o700)
            # the next key and the current one; keystone-manage takes seconds to make them
            for number in "01":
                (keys / number).write_bytes(base64.urlsafe_b64encode(os.urandom(32)))
        self._manage("db_sync")
        self._manage(
            "bootstrap", "--bootstrap-password", self.password, "--bootstrap-region-id", REGION,
            *(f"--bootstrap-{kind}-url={self.url}" for kind in ("admin", "internal", "public")),
        )  # fmt: skip

    def _manage(self, *words: str) -> None:
        manage = self._python.with_name("keystone-manage")
        self._run([str(manage), "--config-file", str(self._configuration), *words])
