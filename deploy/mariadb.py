"""A private MariaDB on a loopback port, the database server of most OpenStack clouds.

Debian and Ubuntu have it in the package mariadb-server-core (`apt-get install mariadb-server-core`).
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy.processes import BinariesMissing, Server, ServerFailed, exchange, search_path

_GREETING = 0x0A  # the protocol's version in the server's first packet


@dataclass(frozen=True)
class MariaBinaries:
    server: Path
    install: Path


def find_mariadb() -> MariaBinaries:
    path = os.pathsep.join((search_path(), "/usr/sbin"))
    server, install = shutil.which("mariadbd", path=path), shutil.which("mariadb-install-db", path=path)
    if server is None or install is None:
        raise BinariesMissing("no MariaDB: on Debian and Ubuntu, apt-get install mariadb-server-core")
    return MariaBinaries(Path(server), Path(install))


class MariaDB(Server):
    """A MariaDB server with the named databases, and a user with all rights on them."""

    name = "MariaDB"
    user = "berth"

    def __init__(self, directory: Path, databases: Iterable[str]) -> None:
        super().__init__(directory)
        self._databases = tuple(databases)
        self._password = secrets.token_hex(16)
        self._data = self.directory / "data"

    def url(self, database: str) -> str:
        """Return the URL of a database for SQLAlchemy with the database driver PyMySQL."""
        at = f"{self.user}:{self._password}@127.0.0.1:{self.port}"
        return f"mysql+pymysql://{at}/{database}?charset=utf8mb4"

    def _launch(self) -> None:
        binaries = find_mariadb()
        account = ["--user=root"] if os.geteuid() == 0 else []
        if not self._data.exists():
            try:
                self._run([
                    str(binaries.install), "--no-defaults", f"--datadir={self._data}", "--skip-test-db",
                    "--auth-root-authentication-method=normal", *account,
                ])  # fmt: skip
            except ServerFailed:
                shutil.rmtree(self._data, ignore_errors=True)
                raise
        self._serve([
            str(binaries.server), "--no-defaults", f"--datadir={self._data}", f"--port={self.port}",
            "--bind-address=127.0.0.1", f"--socket={self.directory / 'socket'}", "--max-connections=500",
            f"--pid-file={self.directory / 'pid'}", f"--init-file={self._first_statements()}", *account,
        ])  # fmt: skip

    def _first_statements(self) -> Path:
        path = self.directory / "first.sql"
        lines = [
            f"CREATE OR REPLACE USER '{self.user}'@'127.0.0.1' IDENTIFIED BY '{self._password}';",
            f"GRANT ALL PRIVILEGES ON *.* TO '{self.user}'@'127.0.0.1' WITH GRANT OPTION;",
            *(
                f"CREATE DATABASE IF NOT EXISTS `{name}` CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci;"
                for name in self._databases
            ),
        ]
        path.touch(mode=0o600)
        path.write_text("\n".join(lines) + "\n")
        return path

    def _ready(self) -> bool:
        return exchange(self.port, b"", 5)[4:] == bytes([_GREETING])
