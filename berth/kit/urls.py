"""Checks URLs in settings."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

from bus.broker_urls import single_urls

if TYPE_CHECKING:
    from bus.feature import Refuse


def check_broker_url(url: str, name: str, refuse: Refuse) -> None:
    """Call `refuse` if a RabbitMQ URL, which may list several addresses, is malformed."""
    try:
        single_urls(url)
    except ValueError as problem:
        refuse(name, str(problem))


def is_loopback(host: str) -> bool:
    """Return whether a host of a URL is this machine: a loopback address or `localhost`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
