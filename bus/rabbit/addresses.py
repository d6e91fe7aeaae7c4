"""Finds the addresses of a broker's URL, and orders them for connection attempts."""

import asyncio
import logging
import random
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from bus.broker_urls import addresses, place, single_urls
from bus.errors import Unavailable

RESOLVE_SECONDS = 2.0  # limit for finding the addresses of a host name
FIRST_LIMIT, LONGEST_LIMIT = 2.0, 10.0  # seconds for one connection attempt, with all handshakes


@dataclass(frozen=True)
class BrokerAddress:
    """An IP address and port of a broker, with a URL that contains this address (as an IP address or a host
    name) and no other.
    """

    url: str
    ip: str
    port: int

    @property
    def place(self) -> str:
        """Return user, host, virtual host and IP address, without the password, for logs."""
        [(host, _)] = addresses(self.url)
        return place(self.url) if host == self.ip else f"{place(self.url)} ({self.ip})"


class AddressOrder:
    """Orders addresses at random, so that processes spread over the nodes of a cluster. Addresses that failed
    come last, the latest failure at the end.
    """

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._failures: dict[tuple[str, int], int] = {}  # consecutive failures; the latest failure is last

    def ordered(self, found: Iterable[BrokerAddress]) -> list[BrokerAddress]:
        """Return the addresses in the order in which to try them."""
        shuffled = list(found)
        self._chance.shuffle(shuffled)
        failed = list(self._failures)
        return sorted(shuffled, key=lambda address: failed.index(k) if (k := _key(address)) in failed else -1)

    def limit(self, address: BrokerAddress) -> float:
        """Return the timeout of the next connection attempt to this address, in seconds.

        The timeout doubles after each failure, because all nodes may be slow when many processes connect.
        """
        return min(FIRST_LIMIT * 2.0 ** min(self._failures.get(_key(address), 0), 8), LONGEST_LIMIT)

    def failed(self, address: BrokerAddress) -> None:
        """Count a failed connection: the address is tried after all others until a connection succeeds."""
        self._failures[_key(address)] = self._failures.pop(_key(address), 0) + 1

    def succeeded(self, address: BrokerAddress) -> None:
        """Forget the failures of an address."""
        self._failures.pop(_key(address), None)


def _key(address: BrokerAddress) -> tuple[str, int]:
    return address.ip, address.port


async def resolved(url: str) -> tuple[list[BrokerAddress], list[Unavailable]]:
    """Return all addresses in the URL of a broker, also if a host name has several; and an error for each
    host name without an address.
    """
    singles = single_urls(url)
    answers = await asyncio.gather(*map(_ips, addresses(url)), return_exceptions=True)
    problems, found = list[Unavailable](), dict[tuple[str, int], BrokerAddress]()
    for single, answer in zip(singles, answers, strict=True):
        if isinstance(answer, OSError | UnicodeError):
            problems.append(Unavailable(f"RabbitMQ at {place(single)} cannot be reached: {answer}"))
        elif isinstance(answer, BaseException):
            raise answer
        else:
            for key in answer:
                found.setdefault(key, BrokerAddress(single, *key))
    return list(found.values()), problems


async def _ips(address: tuple[str, int]) -> list[tuple[str, int]]:
    host, port = address
    try:
        async with asyncio.timeout(RESOLVE_SECONDS):
            found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except TimeoutError:
        raise OSError(f"its name was not resolved within {RESOLVE_SECONDS:g} s") from None
    return [(str(sockaddr[0]), port) for *_, sockaddr in found]


# Silence aiormq, which logs a traceback for every failed attempt: berth logs connection errors itself.
logging.getLogger("aiormq.connection").setLevel(logging.CRITICAL)
