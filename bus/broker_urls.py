"""URLs of RabbitMQ with the address of one broker, or of several nodes of a cluster. Without I/O."""

import re
from urllib.parse import unquote, urlsplit

_PARTS = re.compile(r"(amqps?://)(?:([^/?#]*)@)?([^@/?#]*)([^?#]*)(.*)", re.DOTALL)
_PORTS = {"amqp": 5672, "amqps": 5671}
_LIKE = (
    "must look like amqp://user:password@host:5672/vhost (or amqps://), with several addresses "
    "amqp://user:password@host1:5672,host2:5672/vhost"
)


def single_urls(url: str) -> tuple[str, ...]:
    """Return a URL for each address in the URL of a broker. Raise ValueError if the URL is malformed; the
    error does not contain the URL, which includes a password.
    """
    if not url.startswith(("amqp://", "amqps://")):
        raise ValueError("must begin with amqp:// or amqps://")
    found = _PARTS.fullmatch(url)
    if found is None:
        raise ValueError(_LIKE)
    scheme, known, hosts, path, rest = found.groups(default="")
    if re.search("@.*,", known, re.DOTALL):
        raise ValueError("has user and password once, before the first address; write @ in them as %40")
    if "," in path:
        raise ValueError("has the virtual host once, after the last address; write a comma in it as %2C")
    user = f"{known}@" if known else ""
    urls = tuple(f"{scheme}{user}{host}{path}{rest}" for host in hosts.split(","))
    addresses = [_address(single) for single in urls]
    if len(set(addresses)) < len(addresses):
        raise ValueError("names an address twice")
    return urls


def first_url(url: str) -> str:
    """Return an AMQP URL with only the first of its addresses, so that `urlsplit` can parse it. Return a URL
    of another scheme unchanged.
    """
    return single_urls(url)[0] if url.startswith(("amqp://", "amqps://")) else url


def addresses(url: str) -> list[tuple[str, int]]:
    """Return host and port of each broker that a URL names."""
    return [_address(single) for single in single_urls(url)]


def vhost_of(url: str) -> str:
    """Return the name of the virtual host in the URL of a broker."""
    return unquote(urlsplit(first_url(url)).path[1:]) or "/"


def user_of(url: str) -> str | None:
    """Return the user name in the URL of a broker, or None if the URL has no user name."""
    named = urlsplit(first_url(url)).username
    return unquote(named) if named else None


def client_user(name: str, exchange: str = "berth") -> str:
    """Return the name of the RabbitMQ user of a program outside berth; its prefix differs from that of cells'
    users.
    """
    return f"{exchange}.client.{name}"


def place(url: str) -> str:
    """Return user, addresses and virtual host from the URL of a broker, without the password, for logs."""
    user, vhost = user_of(url), vhost_of(url)
    hosts = ",".join(f"{host}:{port}" for host, port in addresses(url))
    return f"{f'{user}@' if user else ''}{hosts}{f' vhost {vhost}' if vhost != '/' else ''}"


def _address(single: str) -> tuple[str, int]:
    try:
        parts = urlsplit(single)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or port == 0 or not host.isprintable() or " " in host:
        raise ValueError(_LIKE)
    return host, port or _PORTS[parts.scheme]
