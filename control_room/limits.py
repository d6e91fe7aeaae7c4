"""Limits of one client: requests being answered at a time, and sign-ins that failed."""

import ipaddress
from collections import Counter, OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

# connections (berth/control_room_setup.py) to /healthz, and one address or user leaves most to the others.
OF_A_SESSION = 30
OF_A_USER = 100
OF_AN_ADDRESS = 150
IN_ALL = 400

FREE_FAILURES = 5  # sign-ins that may fail before the first pause
LONGEST_PAUSE = 300.0
EXPIRY = 1800.0  # seconds without a failure until the failures of an address are forgotten
_ADDRESSES = 10_000


class TooManyRequests(Exception):
    """A request exceeds a limit, which the text describes."""


class RunningRequests:
    """Requests that are being answered, counted by session, user and address."""

    def __init__(self) -> None:
        self._counts: Counter[Hashable] = Counter()

    @contextmanager
    def count(self, session: str, user: Hashable, address: str) -> Iterator[None]:
        """Count a request for the time of the block; raise TooManyRequests if that exceeds a limit."""
        limits: Mapping[Hashable, tuple[int, str]] = {
            ("session", session): (OF_A_SESSION, "this session"),
            ("user", user): (OF_A_USER if user else IN_ALL, "this user"),
            ("address", network_of(address)): (OF_AN_ADDRESS, "this address"),
            "all": (IN_ALL, "all clients"),
        }
        for key, (most, client) in limits.items():
            if self._counts[key] >= most:
                raise TooManyRequests(
                    f"{most} requests of {client} are being answered already, the most at a time"
                )
        self._counts.update(limits.keys())
        try:
            yield
        finally:
            for key in limits:
                self._counts[key] -= 1
                if not self._counts[key]:
                    del self._counts[key]


@dataclass
class _Failures:
    count: int
    last: float


class SignInFailures:
    """Failed sign-ins by address. After a few, each failure doubles the pause until the next attempt.

    A successful sign-in resets nothing: otherwise one token would permit guessing others without a pause.
    """

    def __init__(self) -> None:
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def pause(self, address: str, now: float) -> float:
        """Return the seconds until this address may try again."""
        failures = self._failures.get(network_of(address))
        if failures is None or failures.count < FREE_FAILURES:
            return 0.0
        pause = min(LONGEST_PAUSE, 2.0 ** min(failures.count - FREE_FAILURES, 20))
        return max(0.0, failures.last + pause - now)

    def failed(self, address: str, now: float) -> int:
        """Count a failure; return how many this address has."""
        key = network_of(address)
        known = self._failures.pop(key, None)
        count = known.count if known is not None and now - known.last < EXPIRY else 0
        self._failures[key] = _Failures(count + 1, now)
        while len(self._failures) > _ADDRESSES:
            self._failures.popitem(last=False)
        return count + 1


def network_of(address: str) -> str:
    """Return an IPv4 address as it is, and of an IPv6 address its /64: one client has all of that."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if found.version == 4:
        return address
    return str(ipaddress.ip_network((found, 64), strict=False))
