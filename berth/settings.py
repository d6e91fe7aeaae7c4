"""What an operator may set: by environment (BERTH_...), a TOML file, and flags, in rising order."""

import ipaddress
import math
import os
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from compute_sim import Durations
from scheduler_worker import ChoicePolicy

ENV_PREFIX = "BERTH_"
EFFECTIVE_ENV = "BERTH_EFFECTIVE_SETTINGS"  # how a supervisor hands its own to the workers it starts
SUPERVISED_ENV = "BERTH_SUPERVISED"  # says to a worker that its standard input closes with its supervisor
DEFAULT_FILE = Path("berth.toml")
_OTHER_VARIABLES = ("BERTH_CONFIG", EFFECTIVE_ENV, SUPERVISED_ENV)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every setting, with the default that serves a newcomer. Times are in seconds."""

    # where things are
    amqp_url: str = ""  # empty: the in-process bus
    database_url: str = ""  # empty: SQLite files in state_dir
    cell_database_urls: dict[str, str] = {}  # cells with a database of their own
    state_dir: str = ".berth"
    exchange: str = "berth"
    queue_type: str = "quorum"  # or classic
    coalesce: bool = True  # pack waiting messages into frames

    # who is there
    cells: tuple[str, ...] = ("c1", "c2", "c3", "c4")

    # scheduling
    candidates: int = 256
    filters: tuple[str, ...] = ()  # empty: the default ones
    weighers: dict[str, float] = {}  # name: multiplier; empty: the default ones
    max_builds_in_flight: int = 8

    # placement's HTTP door
    placement_http: str = ""  # HOST:PORT; empty: none
    placement_auth: str = "noauth2"  # believes everybody, for development; or tokens
    placement_tokens: str = ""  # the file of tokens
    placement_policy: str = ""  # a file of rules; empty: the default ones
    placement_enforce_new_defaults: bool = False  # a lone `admin` may no longer do everything
    placement_cors_origins: tuple[str, ...] = ()  # whose pages may ask
    placement_noauth_anywhere: bool = False  # noauth2 also where other machines can reach it

    # the Ironic that is followed (docs/ironic.md)
    ironic_amqp_url: str = ""  # the RabbitMQ it notifies; empty: it is not heard
    ironic_exchange: str = "ironic"
    ironic_topics: tuple[str, ...] = ("ironic_versioned_notifications",)
    ironic_queue: str = "berth.ironic_sync"  # ours, on that RabbitMQ
    ironic_api_url: str = ""  # empty: it is not read; with keystone: as the catalogue says
    ironic_auth: str = "none"  # or basic, or keystone
    ironic_user: str = ""
    ironic_password: str = ""
    ironic_auth_url: str = ""  # Keystone's
    ironic_user_domain: str = "Default"
    ironic_project: str = ""
    ironic_project_domain: str = "Default"
    ironic_system_scope: str = ""  # all, instead of a project
    ironic_application_credential_id: str = ""  # instead of a user
    ironic_application_credential_secret: str = ""
    ironic_region: str = ""
    ironic_interface: str = "public"
    ironic_ca_file: str = ""  # empty: the authorities this machine trusts
    ironic_cert_file: str = ""  # ours, where it asks for one
    ironic_key_file: str = ""
    ironic_insecure: bool = False  # believe whoever answers
    ironic_reads_at_once: int = 16
    ironic_sweep_seconds: float = 60.0  # from one look at what changed lately to the next
    ironic_full_every: int = 10  # such looks, of which one is at everything
    ironic_pages_per_second: float = 4.0
    ironic_share_gone: float = 0.1  # of the nodes; more are not removed at once
    ironic_skip_reserve_in_use: bool = False  # an available node with an instance stays open

    # which of its nodes, and where each belongs
    ironic_conductor_groups: tuple[str, ...] = ()  # - is the one without a name
    ironic_shards: tuple[str, ...] = ()
    ironic_owners: tuple[str, ...] = ()
    ironic_resource_classes: tuple[str, ...] = ()
    ironic_cell: str = ""  # of those ironic_cells does not name; empty and no mapping: the first of `cells`
    ironic_cell_by: str = ""  # conductor_group, owner, ..., properties.NAME: its value picks the cell
    ironic_cells: dict[str, str] = {}  # value: cell
    ironic_agents: dict[str, str] = {}  # cell: somebody else's agent that builds there, instead of berth's
    ironic_zone: str = ""  # of those without a value there
    ironic_zone_by: str = ""
    ironic_aggregates_by: tuple[str, ...] = ()  # or zone

    # building
    max_attempts: int = 3
    build_timeout: float = 300.0

    # simulated agents
    agents_per_cell: int = 1
    hosts: int = 200
    baremetal: int = 0
    zones: tuple[str, ...] = ()  # dealt out over the hosts
    heartbeat: float = 10.0
    build_time: str = "exponential:0.1"
    fail: float = 0.0  # share of builds that fail on their first host and are tried on the next
    abort: float = 0.0
    hang: float = 0.0
    crash_after: int = 0  # an agent loses power after so many builds, and comes back
    seed: int = 1

    # the process
    log_level: str = "warning"
    metrics_port: int = 0  # 0: none
    drain: float = 10.0

    @property
    def embedded(self) -> bool:
        return not self.amqp_url

    @property
    def reads_ironic(self) -> bool:
        return bool(self.ironic_api_url) or self.ironic_auth == "keystone"

    @property
    def metal_cells(self) -> tuple[str, ...]:
        """Where Ironic's nodes are, in the order of `cells`."""
        return tuple(cell for cell in self.cells if cell in {*self.ironic_cells.values(), self.metal_cell})

    @property
    def metal_cell(self) -> str:
        """Of the nodes no mapping names a cell for; empty: they are not ours."""
        return self.ironic_cell or ("" if self.ironic_cells else self.cells[0])

    def database_for(self, store: str) -> str:
        """The URL of a worker's store; in the default layout one schema, or one file, for each."""
        cell = store.removeprefix("cell_")
        if store.startswith("cell_") and cell in self.cell_database_urls:
            return self.cell_database_urls[cell]
        return self.database_url or f"sqlite+aiosqlite:///{Path(self.state_dir).resolve()}/"


def names_a_file(database_url: str) -> bool:
    """It is one SQLite file: room for one worker's store, not for all of them."""
    return database_url.startswith("sqlite") and not database_url.endswith("/")


class BadSetting(ValueError):
    """A setting that cannot be used; the text names it, its value and where it came from."""


@dataclass(frozen=True)
class Effective:
    """The settings in force, and where each came from."""

    settings: Settings
    origins: dict[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()  # BERTH_ variables that name no setting: a slip, or somebody else's


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    sets: Mapping[str, str] | None = None,
    file: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Effective:
    """`sets` are the command line's --set NAME=VALUE; a flag of the command's own counts for more."""
    environment = os.environ if environment is None else environment
    if environment.get(EFFECTIVE_ENV):
        return _inherited(environment[EFFECTIVE_ENV])
    named = file or (Path(environment["BERTH_CONFIG"]) if environment.get("BERTH_CONFIG") else None)
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}

    def take(name: str, value: Any, origin: str) -> None:
        if name not in Settings.__struct_fields__:
            known = ", ".join(Settings.__struct_fields__)
            raise BadSetting(f"{origin}: there is no setting {name!r}; there are: {known}")
        values[name], origins[name] = _converted(name, value, origin), origin

    for name, value, origin in _from_environment(environment):
        take(name, value, origin)
    for name, value in _from_file(named).items():
        take(name, value, str(named or DEFAULT_FILE))
    for name, value in (sets or {}).items():
        take(name, value, f"--set {name}")
    for name, value in (flags or {}).items():
        if value is not None:
            take(name, value, f"--{name.replace('_', '-')}")
    settings = Settings(**values)
    _check(settings, origins)
    return Effective(settings, origins, tuple(sorted(_unknown(environment))))


SECRETS = ("ironic_password", "ironic_application_credential_secret")


def shown(name: str, value: Any) -> Any:
    """A setting's value as people may see it."""
    return "****" if name in SECRETS and value else masked(value)


def masked(value: Any) -> Any:
    """A value fit to be shown: passwords in URLs are stars."""
    if isinstance(value, str):
        value = re.sub(r"(://[^:/@\s]*):[^\s]+@", r"\1:****@", value)
        return re.sub(r"([?&]password=)[^&\s]+", r"\1****", value)
    if isinstance(value, dict):
        return {key: masked(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(masked(item) for item in value)
    return value


def _inherited(given: str) -> Effective:
    """What a supervisor hands to the workers it starts: whole, and already checked."""
    try:
        settings = msgspec.json.decode(given, type=Settings)
    except msgspec.DecodeError as problem:
        raise BadSetting(f"{EFFECTIVE_ENV}: is for the supervisor of `berth up` to set: {problem}") from None
    return Effective(settings, dict.fromkeys(Settings.__struct_fields__, "supervisor"))


def _unknown(environment: Mapping[str, str]) -> set[str]:
    known = {ENV_PREFIX + name.upper() for name in Settings.__struct_fields__}
    known |= {f"{key}_FILE" for key in known} | set(_OTHER_VARIABLES)
    return {key for key in environment if key.startswith(ENV_PREFIX) and key not in known}


def _from_environment(environment: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """BERTH_NAME=value; or BERTH_NAME_FILE=path, for secrets kept in files. What is empty is not set."""
    found = []
    for name in Settings.__struct_fields__:
        key = ENV_PREFIX + name.upper()
        if environment.get(key):
            found.append((name, environment[key], key))
        elif environment.get(key + "_FILE"):
            path = Path(environment[key + "_FILE"])
            try:
                found.append((name, path.read_text().strip(), f"{key}_FILE"))
            except (OSError, UnicodeDecodeError) as problem:
                why = getattr(problem, "strerror", None) or "not text"
                raise BadSetting(f"{key}_FILE: cannot read {path}: {why}") from None
    return found


def _from_file(named: Path | None) -> dict[str, Any]:
    path = named or DEFAULT_FILE
    if named is None and not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise BadSetting(f"{path}: cannot be read: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise BadSetting(f"{path}: not TOML: {problem}") from None


_KINDS: dict[Any, str] = {
    str: "a text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    tuple[str, ...]: "names, comma separated",
    dict[str, float]: "name=number, comma separated",
    dict[str, str]: "name=value, comma separated",
}


def _converted(name: str, value: Any, origin: str) -> Any:
    kind = next(f.type for f in msgspec.structs.fields(Settings) if f.name == name)
    bad = BadSetting(f"{origin}: {name} takes {_KINDS[kind]}, not {shown(name, value)!r}")
    if isinstance(value, str) and kind is not str:
        if kind == tuple[str, ...]:
            value = [part.strip() for part in value.split(",") if part.strip()]
        elif kind in (dict[str, float], dict[str, str]):
            pairs = [part.partition("=") for part in value.split(",") if part.strip()]
            if not all(equals for _, equals, _ in pairs):
                raise bad
            value = {key.strip(): item.strip() for key, _, item in pairs}
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError:
        raise bad from None


_AT_LEAST = {
    "hosts": 1, "candidates": 1, "max_attempts": 1, "agents_per_cell": 1, "max_builds_in_flight": 1,
    "baremetal": 0, "crash_after": 0, "drain": 0, "metrics_port": 0, "ironic_reads_at_once": 1,
    "ironic_full_every": 1,
}  # fmt: skip


def _check(settings: Settings, origins: Mapping[str, str]) -> None:
    def refuse(name: str, why: str) -> None:
        value = shown(name, getattr(settings, name))
        raise BadSetting(f"{origins.get(name, 'default')}: {name} = {value!r}: {why}")

    for name, least in _AT_LEAST.items():
        if not getattr(settings, name) >= least:
            refuse(name, f"must be at least {least}")
    for name in ("build_timeout", "heartbeat", "drain", "ironic_sweep_seconds", "ironic_pages_per_second"):
        if not math.isfinite(getattr(settings, name)):
            refuse(name, "must be a finite number of seconds")
    for name in ("build_timeout", "heartbeat", "ironic_sweep_seconds"):
        if getattr(settings, name) <= 0:
            refuse(name, "must be more than 0 seconds")
    for name in ("fail", "abort", "hang", "ironic_share_gone"):
        if not 0 <= getattr(settings, name) <= 1:
            refuse(name, "is a share between 0 and 1")
    if settings.fail + settings.abort + settings.hang > 1:
        refuse("fail", "with abort and hang it is more than all builds")
    if settings.metrics_port > 65535:
        refuse("metrics_port", "must be at most 65535")
    for name in ("state_dir", "exchange"):
        if not getattr(settings, name):
            refuse(name, "must not be empty")
    if settings.queue_type not in ("quorum", "classic"):
        refuse("queue_type", "is quorum or classic")
    if settings.log_level not in ("debug", "info", "warning", "error"):
        refuse("log_level", "is debug, info, warning or error")
    _check_places(settings, refuse)
    _check_http(settings, refuse)
    _check_names(settings, refuse)
    if any(name.startswith("ironic_") for name in origins):
        from berth.ironic import check  # which brings what speaks HTTP, and that takes long to load

        check(settings, refuse)


def _check_places(settings: Settings, refuse: Callable[[str, str], None]) -> None:
    if settings.amqp_url and not settings.amqp_url.startswith(("amqp://", "amqps://")):
        refuse("amqp_url", "must begin with amqp:// or amqps://")
    databases = [("database_url", settings.database_url)]
    databases += [("cell_database_urls", url) for url in settings.cell_database_urls.values()]
    for name, url in databases:
        if url and not url.startswith(("postgresql://", "postgresql+asyncpg://", "sqlite+aiosqlite://")):
            refuse(name, "must begin with postgresql:// or sqlite+aiosqlite://")
    if settings.amqp_url and not settings.database_url:
        refuse("database_url", "with a RabbitMQ there must be a database all processes can reach")
    for cell in settings.cell_database_urls:
        if cell not in settings.cells:
            refuse("cell_database_urls", f"there is no cell {cell!r}; there are: {', '.join(settings.cells)}")


def _check_http(settings: Settings, refuse: Callable[[str, str], None]) -> None:
    if settings.placement_auth not in ("noauth2", "tokens"):
        refuse("placement_auth", "is noauth2 or tokens")
    if settings.placement_auth == "tokens" and not settings.placement_tokens:
        refuse("placement_tokens", "name the file of tokens")
    if not settings.placement_http:
        return
    host, _, port = settings.placement_http.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        refuse("placement_http", "takes HOST:PORT, as in 127.0.0.1:8778")
    if (
        settings.placement_auth == "noauth2"
        and not settings.placement_noauth_anywhere
        and not _is_loopback(host)
    ):
        refuse(
            "placement_http",
            "with noauth2 whoever reaches it may do anything: use 127.0.0.1, or placement_auth = tokens,"
            " or, if all who can reach it may, placement_noauth_anywhere = true",
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _check_names(settings: Settings, refuse: Callable[[str, str], None]) -> None:
    if not settings.cells:
        refuse("cells", "name at least one")
    for cell in settings.cells:
        if not re.fullmatch(r"[a-z0-9_]{1,32}", cell):
            refuse("cells", "a cell's name has lower-case letters, digits and _, at most 32")
    if len(set(settings.cells)) < len(settings.cells):
        refuse("cells", "a cell is named twice")
    try:
        Durations.parse(settings.build_time)
    except ValueError as problem:
        refuse("build_time", str(problem))
    try:
        ChoicePolicy.from_names(settings.filters or None, None, max_builds=settings.max_builds_in_flight)
    except ValueError as problem:
        refuse("filters", str(problem))
    try:
        ChoicePolicy.from_names(None, settings.weighers or None, max_builds=settings.max_builds_in_flight)
    except ValueError as problem:
        refuse("weighers", str(problem))
