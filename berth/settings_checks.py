"""Checks the values of settings (ranges, choices, addresses, names of filters) and their
combinations.
"""

from __future__ import annotations

import math
import os
import re
import ssl
from collections.abc import Mapping
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

import msgspec
from msgspec.structs import asdict

from berth.features import added, authentication_methods, features
from berth.kit.feature_parts import ProcessPart, authentication
from berth.kit.urls import check_broker_url, is_loopback
from berth.settings import (
    PREFIX,
    BadSetting,
    CellAccountLimits,
    RequestSettings,
    SchedulerSettings,
    Settings,
    SimulatorSettings,
    described,
    settings_by_name,
)
from bus.masking import masked

if TYPE_CHECKING:
    from bus.feature import Refuse


# Driver options that a PostgreSQL URL may contain; berth sets the driver's further options.
DATABASE_PARAMETERS = frozenset(
    {"gsslib", "host", "krbsrvname", "passfile", "password", "port", "prepared_statement_cache_size",
     "service", "servicefile", "ssl", "sslcert", "sslkey", "sslmode", "sslrootcert", "target_session_attrs",
     "user"}
)  # fmt: skip

_AT_LEAST = {
    "simulator.hosts": 1, "simulator.agents_per_cell": 1, "simulator.baremetal": 0,
    "simulator.crash_after": 0, "max_attempts": 1, "max_wait": 0, "keep_changes": 1000,
    "probe_port": 0, "host_subset_size": 1, "scheduler_near": 0, "database_pool": 2,
    "max_aggregates": 0, "placement_keep_alive": 0,
}  # fmt: skip
_POSITIVE_SECONDS = (
    "build_timeout", "heartbeat", "ironic_build_patience", "keep", "keep_acts",
)  # fmt: skip
_LEAST_LIMITS = CellAccountLimits(
    connections=1, channels=10, queue_bytes=1024 * 1024, database_connections=5, statement_seconds=0,
    transaction_seconds=0, lock_seconds=0, temp_bytes=0,
)  # fmt: skip
_CHOICES = {
    "layout": ("auto", "separate", "compact"),
    "agent_queues": ("own", "shared"),
    "log_level": ("debug", "info", "warning", "error"),
    "log_format": ("text", "json"),
    "placement_auth": ("noauth2", "tokens", *authentication_methods()),
    "tenant_aggregates": ("off", "optional", "required"),
}


def check(settings: Settings, given: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Raise `BadSetting` for the first unusable setting. `given`: the values that replace defaults, by
    setting name; `origins`: the source of each of these values.
    """
    values = {**settings_by_name(settings), **given}

    def refuse(name: str, why: str) -> None:
        value = described(values[name]) if name in _CHOICES else repr(masked(values[name]))
        raise BadSetting(f"{origins.get(name, 'default')}: {name} = {value}: {why}")

    _check_numbers(values, refuse)
    _check_faults(settings.simulator, refuse)
    for name, choices in _CHOICES.items():
        if values[name] not in choices:
            why = f"is {', '.join(choices[:-1])} or {choices[-1]}"
            if name == "placement_auth" and not authentication_methods():
                why += "; no feature of this berth adds another method"
            refuse(name, why)
    if settings.cells.agent_queues == "shared" and not any(
        "agent_queues" in feature.adds for feature in features()
    ):
        refuse("agent_queues", "no feature of this berth lets agents share queues")
    for name in ("state_dir", "exchange"):
        if not values[name]:
            refuse(name, "must not be empty")
    _check_cells(values, refuse)
    _check_cell_limits(settings, refuse)
    _check_addresses(values, refuse)
    _check_http(settings, refuse)
    _check_names(settings, refuse)
    if any(name.startswith("ironic_") or name == "nova_conf" for name in origins):
        from berth.ironic import check as check_ironic  # imports an HTTP client, which loads slowly

        check_ironic(settings, refuse)
    for feature in features():
        if feature.settings is not None:
            settings.of(feature.settings).check(refuse)
        is_set = any(name.startswith(f"{feature.name}_") for name in origins)
        for part in added(ProcessPart, "processes", of=feature) if is_set else ():
            part.check(settings, refuse)


def _check_numbers(values: Mapping[str, Any], refuse: Refuse) -> None:
    for name, least in _AT_LEAST.items():
        if not values[name] >= least:
            refuse(name, f"must be at least {least}")
    for name in (*_POSITIVE_SECONDS, "max_wait", "placement_keep_alive"):
        if not math.isfinite(values[name]):
            refuse(name, "must be a finite number of seconds")
    for name in _POSITIVE_SECONDS:
        if values[name] <= 0:
            refuse(name, "must be more than 0 seconds")
    if values["probe_port"] > 65535:
        refuse("probe_port", "must be at most 65535")


def _check_faults(simulator: SimulatorSettings, refuse: Refuse) -> None:
    for name in ("fail", "abort", "hang", "move_fail", "move_hang"):
        if not 0 <= getattr(simulator, name) <= 1:
            refuse(f"{PREFIX}{name}", "is a share between 0 and 1")
    if simulator.fail + simulator.abort + simulator.hang > 1:
        refuse(f"{PREFIX}fail", "with abort and hang it is more than all builds")
    if simulator.move_fail + simulator.move_hang > 1:
        refuse(f"{PREFIX}move_fail", "with move_hang it is more than all phases")


def _check_cells(values: Mapping[str, Any], refuse: Refuse) -> None:
    cells = values["cells"]
    if not cells:
        refuse("cells", "name at least one")
    for cell in cells:
        if not re.fullmatch(r"[a-z0-9_]{1,32}", cell):
            refuse("cells", "a cell's name has lower-case letters, digits and _, at most 32")
    if len(set(cells)) < len(cells):
        refuse("cells", "a cell is named twice")
    for name in ("cell_amqp_urls", "cell_database_urls", "cell_ferry_urls"):
        for cell in values[name]:
            if cell not in cells:
                refuse(name, f"there is no cell {cell!r}; there are: {', '.join(cells)}")


def _check_cell_limits(settings: Settings, refuse: Refuse) -> None:
    try:
        limits = settings.cell_limits
    except msgspec.ValidationError:
        known = ", ".join(CellAccountLimits.__struct_fields__)
        refuse("cell_limits", f"takes integers (seconds: any number) with the names {known}")
    else:
        for name, least in asdict(_LEAST_LIMITS).items():
            if not least <= getattr(limits, name) < math.inf:
                refuse("cell_limits", f"{name} must be at least {least}, and finite")


def _check_addresses(values: Mapping[str, Any], refuse: Refuse) -> None:
    for name in ("amqp_url", "cell_amqp_urls", "cell_ferry_urls"):
        for url in _urls(values[name]):
            check_broker_url(url, name, refuse)
            _check_files(url, ("cafile", "certfile", "keyfile"), name, refuse)
    if values["management_url"] and not values["management_url"].startswith(("http://", "https://")):
        refuse("management_url", "must begin with http:// or https://")
    for name in ("database_url", "cell_database_urls"):
        for url in _urls(values[name]):
            if not url.startswith(("postgresql://", "postgresql+asyncpg://", "sqlite+aiosqlite://")):
                refuse(name, "must begin with postgresql:// or sqlite+aiosqlite://")
            _check_database(url, name, refuse)
            _check_files(url, ("sslrootcert", "sslcert", "sslkey"), name, refuse)
    if values["amqp_url"] and not values["database_url"]:
        refuse(
            "database_url", "with amqp_url workers are processes that share a PostgreSQL: set database_url"
        )
    for name in ("cell_amqp_urls", "cell_ferry_urls"):
        if values[name] and not values["amqp_url"]:
            refuse(name, "without amqp_url there is no RabbitMQ: all workers are in one process")


def _check_files(url: str, named: tuple[str, ...], name: str, refuse: Refuse) -> None:
    """Call `refuse` for each file that is named in an option of a URL and is missing or unreadable. `named`:
    the options with file names; `name`: the setting with the URL.
    """
    for option, path in parse_qsl(url.partition("?")[2]):
        if option in named and not os.access(path, os.R_OK):
            refuse(name, f"{option}={path}: there is no such file, or it cannot be read")


def _urls(value: str | Mapping[str, str]) -> list[str]:
    return [url for url in ([value] if isinstance(value, str) else value.values()) if url]


def _check_database(url: str, name: str, refuse: Refuse) -> None:
    from bus.sql.addresses import parse_url  # takes long to load, and a client's command has no database

    try:
        parsed = parse_url(url).url
    except ValueError as problem:
        refuse(name, str(problem))
        return
    if parsed.host is not None and url.startswith("sqlite"):
        refuse(name, "must look like postgresql://user:password@host:5432/database")
    elif url.startswith("postgresql") and (unknown := parsed.query.keys() - DATABASE_PARAMETERS):
        known = ", ".join(sorted(DATABASE_PARAMETERS))
        refuse(name, f"{', '.join(sorted(unknown))}: no such parameter; there are: {known}")


def _check_http(settings: Settings, refuse: Refuse) -> None:
    placement = settings.placement
    if placement.auth == "tokens" and not placement.tokens:
        refuse("placement_tokens", "name the file of tokens")
    values = settings_by_name(settings)
    for feature in features():
        is_required = feature.authentication == placement.auth
        if is_required or not feature.authentication:
            for name in (name for name in feature.clouds if is_required or values[name]):
                _check_cloud(name, values[name], refuse)
    for method in authentication_methods():
        if (part := authentication(method)) is not None:
            part.check(settings, refuse)
    _check_tls(settings, refuse)
    places = [("placement_http", placement.http, "127.0.0.1:8778")] if placement.http else []
    if settings.rest.http:
        places.append(("rest_http", settings.rest.http, "127.0.0.1:8779"))
    if settings.control_room.listens:
        places.append(("control_room_http", settings.control_room.http, "127.0.0.1:8780, auto or off"))
    if metrics := settings.process.metrics_http:
        _, port = _host_and_port("metrics_http", metrics, "127.0.0.1:9100", refuse)
        if port == 0:
            refuse("metrics_http", "needs a port: further processes use the next ports")
    for name, place, such_as in places:
        host, _ = _host_and_port(name, place, such_as, refuse)
        if placement.auth == "noauth2" and not is_loopback(host):
            refuse(
                name,
                "with noauth2 every client that reaches it may do anything: use 127.0.0.1 or "
                "placement_auth = tokens",
            )


def _host_and_port(name: str, place: str, such_as: str, refuse: Refuse) -> tuple[str, int]:
    """Return the host and the port of an address; call `refuse` if it is not HOST:PORT."""
    host, _, port = place.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        refuse(name, f"takes HOST:PORT, as in {such_as}")
    return host, int(port)


def _check_cloud(setting: str, cloud: str, refuse: Refuse) -> None:
    from ironic_sync.openstack import cloud_access  # imports an HTTP client, which loads slowly

    if not cloud:
        refuse(setting, "name the entry of clouds.yaml whose user checks tokens, or envvars")
    try:
        access = cloud_access(cloud)
        access.trust()
    except (ValueError, OSError) as problem:
        refuse(setting, str(problem))
    else:
        if not access.has_tokens:
            refuse(setting, f"its auth_type {access.auth_type} is not of Keystone")


def _check_tls(settings: Settings, refuse: Refuse) -> None:
    certificate, key = settings.process.http_certificate, settings.process.http_key
    if bool(certificate) != bool(key):
        refuse("http_key" if certificate else "http_certificate", "name the certificate and its key")
    if certificate:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
        except (OSError, ssl.SSLError) as problem:
            why = problem.strerror or str(problem)
            refuse("http_certificate", f"{certificate} and {key} cannot be used: {why}")


def _check_names(settings: Settings, refuse: Refuse) -> None:
    """Parse the settings of simulator, scheduler and requests, and call `refuse` for each wrong one.

    A group of settings with only default values is skipped, because the parsers' modules load slowly.
    """
    parsed = attrgetter("build_time", "move_time", "drivers", "machines", "provider_config")
    if parsed(settings.simulator) != parsed(SimulatorSettings()):
        _check_simulation(settings.simulator, refuse)
    if (settings.scheduler, settings.requests) != (SchedulerSettings(), RequestSettings()):
        _check_choice(settings, refuse)


def _check_simulation(simulator: SimulatorSettings, refuse: Refuse) -> None:
    from compute_sim.core.faults import Durations
    from compute_sim.machines import BadMachine, machines

    for name, text in (("build_time", simulator.build_time), ("move_time", simulator.move_time)):
        try:
            if text or name == "build_time":
                Durations.parse(text)
        except ValueError as problem:
            refuse(f"{PREFIX}{name}", str(problem))
    try:
        machines(simulator.drivers, simulator.machines, simulator.provider_config)
    except BadMachine as problem:
        files = {"machines": simulator.machines, "provider_config": simulator.provider_config}
        named = (name for name, path in files.items() if path and str(problem).startswith(path.rstrip("/")))
        refuse(f"{PREFIX}{next(named, 'drivers')}", str(problem))


def _check_choice(settings: Settings, refuse: Refuse) -> None:
    from berth.kit.choice_policies import chosen

    chosen(settings, refuse)
