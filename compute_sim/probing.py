"""Probes whether other hosts are reachable, for the scheduler's vote about a host without heartbeats."""

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from bus.guests import HostsProbe, ProbedHost, ProbeResult
from bus.hooks import run_hook

SECONDS = 3.0  # until a host counts as not reached


@dataclass(frozen=True, slots=True)
class HostProber:
    """Probes hosts by an operator's command, else by a TCP connection to `port`. With neither, no host is
    reported as reached or unreached.
    """

    port: int = 0
    command: Sequence[str] = ()

    async def probe(self, asked: HostsProbe) -> ProbeResult:
        results = await asyncio.gather(*(self._is_reached(host) for host in asked.hosts))
        roots: dict[bool | None, list[str]] = {True: [], False: []}
        for host, is_reached in zip(asked.hosts, results, strict=True):
            roots.setdefault(is_reached, []).append(host.root)
        return ProbeResult(id=asked.id, reached=tuple(roots[True]), unreached=tuple(roots[False]))

    async def _is_reached(self, host: ProbedHost) -> bool | None:
        address = host.ip or host.host
        if self.command:
            code, _ = await run_hook(self.command, [host.host, address], SECONDS)
            return {0: True, 1: False}.get(-1 if code is None else code)
        return await _answers(address, self.port) if self.port else None


async def _answers(address: str, port: int) -> bool | None:
    """Return True if a host accepts or refuses a TCP connection, False if it does not answer, and None if its
    name has no address.
    """
    try:
        async with asyncio.timeout(SECONDS):
            _, writer = await asyncio.open_connection(address, port)
    except ConnectionRefusedError:
        return True
    except socket.gaierror:
        return None
    except OSError:  # also a time-out
        return False
    writer.close()
    return True
