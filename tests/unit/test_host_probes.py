"""An agent's probes of other hosts: by a command or a TCP port."""

import asyncio
from pathlib import Path

import pytest

from bus.guests import HostsProbe, ProbedHost, ProbeResult
from compute_sim import agent
from compute_sim.agent import HostProber
from tests.support.ids import uid

ROOTS = [uid(number, "a") for number in range(4)]


def a_probe(*hosts: tuple[str, str]) -> HostsProbe:
    probed = (ProbedHost(root, *host) for root, host in zip(ROOTS, hosts, strict=False))
    return HostsProbe(id=uid(1), hosts=tuple(probed))


async def test_exit_code_0_means_reached_1_unreached_and_others_unknown(tmp_path: Path) -> None:
    command = tmp_path / "probe"
    command.write_text('#!/bin/sh\ntest "$3" = 10.0.0.1 || exit 2\nexit ${2#host-}\n')
    command.chmod(0o755)
    prober = HostProber(command=(str(command), "--quick"))
    asked = a_probe(("host-0", "10.0.0.1"), ("host-1", "10.0.0.1"), ("host-2", "10.0.0.1"), ("-x", ""))
    assert await prober.probe(asked) == ProbeResult(id=uid(1), reached=(ROOTS[0],), unreached=(ROOTS[1],))


async def test_a_port_that_accepts_or_refuses_shows_that_the_host_runs() -> None:
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    asked = a_probe(("a", "127.0.0.1"), ("no-such-name.invalid", ""))
    async with server:
        assert (await HostProber(port).probe(asked)).reached == (ROOTS[0],)
    found = await HostProber(port).probe(asked)
    assert (found.reached, found.unreached) == ((ROOTS[0],), ())


async def test_a_host_that_answers_nothing_is_not_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(host: str, port: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio, "open_connection", silent)
    monkeypatch.setattr(agent, "SECONDS", 0.01)
    assert (await HostProber(22).probe(a_probe(("a", "10.0.0.1")))).unreached == (ROOTS[0],)


async def test_an_agent_without_a_probe_knows_nothing() -> None:
    assert await HostProber().probe(a_probe(("a", "127.0.0.1"))) == ProbeResult(id=uid(1))
