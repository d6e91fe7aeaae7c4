"""Parses database URLs, including libpq's lists of several PostgreSQL hosts."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

PORT = 5432
SESSIONS = ("read-write", "primary", "any")  # permitted values of libpq's target_session_attrs: berth writes
_LISTED = re.compile(r"(postgresql(?:\+\w+)?://(?:[^@]*@)?)([^@/?#]*,[^@/?#]*)([/?].*)?", re.DOTALL)
_SHAPE = "must look like postgresql://user:password@host:5432/database"


class DatabaseHost(NamedTuple):
    """The name or address of a host that runs PostgreSQL, and PostgreSQL's port."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


class DatabaseAddress(NamedTuple):
    """A parsed database URL. `hosts` is empty unless the URL lists several hosts of one PostgreSQL."""

    url: URL
    hosts: tuple[DatabaseHost, ...] = ()

    @property
    def shown(self) -> str:
        """Return the URL without its parameters, as libpq writes it."""
        plain = self.url.set(query={})
        if not self.hosts:
            return plain.render_as_string(hide_password=False)
        before, _, after = plain.set(host="hosts").render_as_string(hide_password=False).rpartition("hosts")
        return f"{before}{','.join(map(str, self.hosts))}{after}"


def parse_url(url: str) -> DatabaseAddress:
    """Return the parts of a database URL; raise ValueError with the reason if the URL cannot be used.

    Several hosts are written `h1:5432,h2:5432` in place of the host, or as libpq's parameters
    `?host=h1,h2&port=5432,5433`, or as SQLAlchemy's `?host=h1:5432&host=h2:5432`.
    """
    listed = _LISTED.fullmatch(url)
    try:
        address = make_url(f"{listed[1]}{listed[3] or ''}" if listed else url)
    except (ValueError, ArgumentError):
        raise ValueError(_SHAPE) from None
    if address.get_backend_name() != "postgresql":
        return DatabaseAddress(address)
    hosts = _listed_hosts(listed[2]) if listed else ()
    if "host" in address.query and hosts:
        raise ValueError("the hosts are named twice: before the database, and by the parameter host")
    hosts = hosts or _hosts_of_parameters(address)
    wanted = _single(address, "target_session_attrs")
    if wanted and wanted not in SESSIONS:
        raise ValueError(f"target_session_attrs={wanted}: berth writes, so there are {', '.join(SESSIONS)}")
    if not hosts:
        return DatabaseAddress(address)
    if wanted == "any":
        raise ValueError("target_session_attrs=any: with several hosts it must be read-write or primary")
    if len(set(hosts)) < len(hosts):
        raise ValueError("a host is listed twice")
    return DatabaseAddress(address.difference_update_query(["host", "port", "target_session_attrs"]), hosts)


def _hosts_of_parameters(address: URL) -> tuple[DatabaseHost, ...]:
    value, ports = address.query.get("host", ""), _single(address, "port")
    text = value if isinstance(value, str) else ",".join(value)
    if "," not in text:
        if "," in ports:
            raise ValueError("there are several ports and one host")
        return ()
    return _listed_hosts(text, ports)


def _listed_hosts(text: str, ports: str = "") -> tuple[DatabaseHost, ...]:
    names = text.split(",")
    listed = ports.split(",") if ports else [""]
    if len(listed) not in (1, len(names)):
        raise ValueError(f"there are {len(names)} hosts and {len(listed)} ports")
    return tuple(_host(name, port) for name, port in zip(names, _repeated(listed, len(names)), strict=True))


def _repeated(ports: Sequence[str], count: int) -> Sequence[str]:
    return ports if len(ports) == count else [ports[0]] * count


def _host(text: str, port: str) -> DatabaseHost:
    """Return the host that `text` names, such as h1 or h1:5432. `port` is used if `text` has no port."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/]+))(?::(.*))?", text.strip())
    if found is None:
        raise ValueError(f"{text!r} in the list of hosts is no host: it takes host:5432,host:5432")
    number = port if found[3] is None else found[3]
    if number and not (number.isascii() and number.isdigit() and 0 < int(number) < 65536):
        raise ValueError(f"{number!r} in the list of hosts is no port")
    return DatabaseHost(found[1] or found[2], int(number or PORT))


def _single(address: URL, name: str) -> str:
    value: Any = address.query.get(name, "")
    return value if isinstance(value, str) else ",".join(value)
