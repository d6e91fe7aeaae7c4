"""A private Ironic: API and conductor in one process, without authentication, with fake hardware.

It is installed from the package index into a separate environment, made by `make ironic-test`.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.processes import (
    BinariesMissing,
    Server,
    ServerFailed,
    environment_without,
    exchange,
    executable,
    search_path,
)

ENVIRONMENT = Path(__file__).resolve().parent.parent / ".venv-ironic"
_HINT = "make ironic-test installs it; or name another environment's bin directory in BERTH_TEST_IRONIC"


@dataclass(frozen=True)
class IronicBinaries:
    ironic: Path
    dbsync: Path


def find_ironic() -> IronicBinaries:
    place = Path(os.environ.get("BERTH_TEST_IRONIC") or ENVIRONMENT / "bin")
    found = IronicBinaries(place / "ironic", place / "ironic-dbsync")
    if executable(found.ironic) and executable(found.dbsync):
        return found
    raise BinariesMissing(f"no Ironic in {place}: {_HINT}")


@dataclass(frozen=True, kw_only=True)
class Drivers:
    """Hardware interfaces that Ironic lacks, by kind as `name = module:Class`, and their directory."""

    path: Path | None = None
    interfaces: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> dict[str, str]:
        return {kind: spec.partition("=")[0].strip() for kind, spec in self.interfaces.items()}


class IronicServer(Server):
    """A private Ironic that notifies the broker's exchange `ironic` and stores nodes in an SQLite file."""

    name = "Ironic"

    def __init__(
        self,
        directory: Path,
        amqp_url: str,
        *,
        drivers: Drivers | None = None,
        settings: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        super().__init__(directory)
        self._amqp_url = amqp_url
        self._drivers = drivers or Drivers()
        self._settings = settings or {}
        self._configuration = self.directory / "ironic.conf"
        self._database = self.directory / "ironic.sqlite"
        self._plugins = self.directory / "plugins"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def _launch(self) -> None:
        binaries, environment = find_ironic(), self._environment()
        self._write_configuration()
        self._announce_drivers()
        command = ["--config-file", str(self._configuration)]
        if not self._database.exists():
            try:
                self._run([str(binaries.dbsync), *command, "create_schema"], environment)
            except ServerFailed:
                self._database.unlink(missing_ok=True)
                raise
        # the signal KILL ends processes that the server forked
        self._serve([str(binaries.ironic), *command], environment, watchdog="KILL")

    def _write_configuration(self) -> None:
        rabbit = f"rabbit://{self._amqp_url.partition('://')[2]}"
        sections: dict[str, dict[str, str]] = {
            "DEFAULT": {
                "auth_strategy": "noauth",
                "rpc_transport": "none",
                "host": "berth-test",
                "notification_level": "info",
                "use_stderr": "true",
                "transport_url": rabbit,
                "enabled_hardware_types": "fake-hardware",
                "default_network_interface": "noop",
                "minimum_memory_warning_only": "true",
                **{f"enabled_{kind}_interfaces": names for kind, names in self._interfaces().items()},
                **{f"default_{kind}_interface": name for kind, name in self._drivers.names.items()},
            },
            "database": {"connection": f"sqlite:///{self._database}"},
            "api": {"host_ip": "127.0.0.1", "port": str(self.port), "api_workers": "1"},
            "conductor": {"automated_clean": "true"},
            "oslo_messaging_notifications": {"driver": "messagingv2", "transport_url": rabbit},
            "oslo_concurrency": {"lock_path": str(self.directory / "locks")},
        }
        for section, given in self._settings.items():
            sections.setdefault(section, {}).update(given)
        lines = [
            line
            for section, values in sections.items()
            for line in (f"[{section}]", *(f"{key} = {value}" for key, value in values.items()))
        ]
        self._configuration.write_text("\n".join(lines) + "\n")

    def _interfaces(self) -> dict[str, str]:
        """Return the names of the enabled hardware interfaces, by kind such as power or deploy."""
        enabled = {
            "power": "fake", "management": "fake", "boot": "fake", "deploy": "fake,direct", "vendor": "fake",
            "inspect": "fake,no-inspect", "raid": "fake,no-raid", "bios": "fake,no-bios",
            "rescue": "fake,no-rescue", "network": "noop", "storage": "noop", "firmware": "no-firmware",
            "console": "no-console",
        }  # fmt: skip
        return enabled | {kind: f"{name},{enabled[kind]}" for kind, name in self._drivers.names.items()}

    def _announce_drivers(self) -> None:
        """Register the hardware interfaces by entry points in a directory on Python's path, as an installed
        package would."""
        about = self._plugins / "berth_drivers-1.dist-info"
        about.mkdir(parents=True, exist_ok=True)
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: berth-drivers\nVersion: 1\n")
        (about / "entry_points.txt").write_text(
            "".join(
                f"[ironic.hardware.interfaces.{kind}]\n{spec}\n"
                for kind, spec in self._drivers.interfaces.items()
            )
        )

    def _environment(self) -> dict[str, str]:
        environment = environment_without("OS_", "PYTHON")
        looked_into = [str(self._plugins), *([str(self._drivers.path)] if self._drivers.path else [])]
        environment.update(
            PATH=search_path(), HOME=str(self.directory), PYTHONPATH=os.pathsep.join(looked_into)
        )
        return environment

    def _ready(self) -> bool:
        return exchange(self.port, b"GET / HTTP/1.0\r\n\r\n", 5) == b"HTTP/"

    def _signal_processes(self, graceful: bool) -> None:
        assert self._process is not None
        if graceful:
            self._process.send_signal(signal.SIGTERM)
        else:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
