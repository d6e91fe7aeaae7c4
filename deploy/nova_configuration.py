"""Writes the configuration files of a Nova region, one for each process, from shared settings."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from deploy.keystone import REGION
from deploy.placement import KeystoneUser

Sections = Mapping[str, Mapping[str, object]]

API_DATABASE, CELL0 = "nova_api", "nova_cell0"
UNLIMITED = ("instances", "cores", "ram", "server_groups", "server_group_members", "key_pairs")


@dataclass(frozen=True, kw_only=True)
class HostCapacity:
    """The resources of a fake host."""

    vcpus: int = 16
    memory_mb: int = 65536
    disk_gb: int = 1000


@dataclass(frozen=True, kw_only=True)
class NovaOptions:
    """Options of a Nova region: which services it has, and how many cells and hosts."""

    hosts: int = 3  # host-001 …; distributed over the cells in turn
    capacity: HostCapacity = field(default_factory=HostCapacity)
    cells: tuple[str, ...] = ("cell1",)  # each with a database, a virtual host of RabbitMQ and a conductor
    has_scheduler: bool = True  # False: another process consumes the topic `scheduler`
    has_mariadb: bool = False  # Nova and OpenStack Placement use MariaDB; else PostgreSQL
    sections: Sections = field(default_factory=dict)  # settings of all processes, merged last

    @property
    def host_names(self) -> tuple[str, ...]:
        return tuple(f"host-{number:03}" for number in range(1, self.hosts + 1))

    def cell_of(self, host: str) -> str:
        return self.cells[(int(host.rpartition("-")[2]) - 1) % len(self.cells)]


def node_uuid(host: str) -> str:
    """Return the UUID of the host's compute node, which is also that of its resource provider."""
    return str(uuid.uuid5(uuid.NAMESPACE_DNS, host))


def cell_database(cell: str) -> str:
    return f"nova_{cell}"


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """The addresses of the services that Nova's processes use: Keystone, databases and message buses."""

    user: KeystoneUser  # Nova's user
    database_urls: Mapping[str, str]  # by database; with the driver that Nova uses
    bus_urls: Mapping[str, str]  # by cell; "" is the API's
    paste: Path

    @property
    def api_bus(self) -> str:
        return self.transport_url("")

    def transport_url(self, cell: str) -> str:
        """Return the URL of a cell's bus as oslo.messaging writes it."""
        return f"rabbit://{self.bus_urls[cell].partition('://')[2]}"


def sections_of(
    name: str,
    options: NovaOptions,
    at: Addresses,
    directory: Path,
    *,
    cell: str = "",
    is_compute: bool = False,
) -> dict[str, dict[str, object]]:
    """Return the configuration of a Nova process; without a cell, of a process that serves all cells."""
    identity: dict[str, object] = {**at.user.options, "auth_type": "password"}
    client = identity | {"region_name": REGION}
    sections: dict[str, dict[str, object]] = {
        "DEFAULT": {
            "host": name, "state_path": directory, "transport_url": at.api_bus, "my_ip": "127.0.0.1",
            "compute_driver": "sized.SizedDriver", "log_file": "", "use_stderr": True, "debug": False,
            "graceful_shutdown_timeout": 4, "manager_shutdown_timeout": 0, "ssl_only": False,
            "service_down_time": 60, "report_interval": 10, "initial_cpu_allocation_ratio": 1.0,
            "reserved_host_memory_mb": 0, "use_rootwrap_daemon": False,
            "vif_plugging_is_fatal": False, "vif_plugging_timeout": 0,
        },
        "api": {"auth_strategy": "keystone"},
        "wsgi": {"api_paste_config": at.paste},
        "keystone_authtoken": identity | {"www_authenticate_uri": at.user.auth_url},
        "service_user": identity | {"send_service_user_token": True},
        "placement": client,
        "compute": {"live_migration_wait_for_vif_plug": False},  # the stand-in sends no events
        "glance": client,
        "neutron": client,
        "cinder": identity | {"os_region_name": REGION},
        "keystone": client,
        "vnc": {"enabled": False},
        "scheduler": {"workers": 1, "discover_hosts_in_cells_interval": -1},
        "conductor": {"workers": 1},
        "quota": dict.fromkeys(UNLIMITED, -1),
        "oslo_concurrency": {"lock_path": directory / "locks"},
        "oslo_messaging_notifications": {"driver": "messagingv2", "transport_url": at.api_bus},
        "notifications": {"notification_format": "versioned", "notify_on_state_change": "vm_and_task_state"},
        # Cells cannot read the API's database, where groups are.
        "workarounds": {"disable_group_policy_check_upcall": True},
    }  # fmt: skip
    if cell in at.bus_urls:
        sections["DEFAULT"]["transport_url"] = at.transport_url(cell)
    if not is_compute:
        sections |= _databases(at, cell)
    for section, values in options.sections.items():
        sections.setdefault(section, {}).update(values)
    return sections


def _databases(at: Addresses, cell: str) -> dict[str, dict[str, object]]:
    """Return the database settings of a process that is not a compute service."""
    pool = {"max_pool_size": 10, "max_overflow": 20, "max_retries": -1}
    url = at.database_urls[cell_database(cell) if cell else CELL0]
    databases: dict[str, dict[str, object]] = {"database": {"connection": url, **pool}}
    if not cell:
        databases["api_database"] = {"connection": at.database_urls[API_DATABASE], **pool}
    return databases


def write(path: Path, sections: Sections) -> Path:
    """Write a configuration file in the format of oslo.config."""
    path.write_text("\n".join(_lines(sections)) + "\n")
    return path


def _lines(sections: Sections) -> Iterable[str]:
    for section, values in sections.items():
        yield f"[{section}]"
        yield from (f"{name} = {value}" for name, value in values.items())
