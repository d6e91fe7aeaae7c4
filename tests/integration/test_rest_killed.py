"""kill -9 of the REST API while clients send requests, repeat them and wait: nothing is lost or doubled."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from berth.client import RestClient
from berth.operations.audit import audit
from berth.rest.bodies import RequestState
from berth.settings import Settings
from bus.clock import Clock
from bus.messages import BuildEnded
from bus.protocol import decode
from deploy.processes import free_port
from tests.support.berth_processes import Running, running
from tests.support.rest_berth import a_boot, tokens_in
from tests.support.waiting import until

TOKEN = "token of ann"


class Ends:
    """A client that follows the stream of events for the whole test."""

    def __init__(self) -> None:
        self.numbers = list[int]()
        self.builds = Counter[str]()

    def has(self, count: int) -> bool:
        return len(self.builds) >= count

    async def follow(self, client: RestClient, after: int) -> None:
        async for event in client.events(after):
            self.numbers.append(event.number)
            if event.event == "build.ended":
                self.builds[decode(BuildEnded, event.data).build] += 1


async def kill_repeatedly(berth: Running, ends: Ends, counts: Sequence[int]) -> None:
    """Kill the REST API each time when the stream has so many ends."""
    for count in counts:
        await until(partial(ends.has, count), f"the stream has {count} ends")
        await berth.kill("rest")


@pytest.mark.soak
@pytest.mark.services
@pytest.mark.parametrize(("clients", "repetitions", "kills"), [(20, 40, 2), (500, 1000, 5)])
async def test_a_killed_rest_api_loses_and_doubles_nothing(
    servers: Settings, tmp_path: Path, clients: int, repetitions: int, kills: int
) -> None:
    settings = servers.having(
        simulator={"hosts": 100, "build_time": "constant:0.3"},
        rest_http=f"127.0.0.1:{free_port()}",
        placement_auth="tokens",
        placement_tokens=tokens_in(tmp_path),
    )
    requests = [a_boot(Clock().uuid()) for _ in range(clients)]
    ends = Ends()
    patient = RestClient(f"http://{settings.rest.http}", TOKEN, patience=120.0)
    async with running(settings) as berth, patient as client, asyncio.TaskGroup() as group:
        following = group.create_task(ends.follow(client, await client.newest_event()))
        killing = group.create_task(
            kill_repeatedly(berth, ends, [clients * (n + 1) // (kills + 1) for n in range(kills)])
        )

        async def boot(number: int) -> RequestState:
            request = requests[number]
            await client.boot(request)
            return await client.ended(request.request, 300.0)

        async def repeat(number: int) -> None:
            await client.boot(requests[number % clients])

        waiting = [group.create_task(boot(number)) for number in range(clients)]
        repeating = [group.create_task(repeat(number)) for number in range(repetitions)]
        states = await asyncio.gather(*waiting)
        await asyncio.gather(*repeating)
        await killing
        assert Counter(state.builds[0].status for state in states) == {"active": clients}
        await until(partial(ends.has, clients), "the stream has all ends")
        following.cancel()
        found = await audit(settings, settled=True)
    assert ends.builds == Counter(request.request for request in requests)
    assert ends.numbers == sorted(set(ends.numbers))
    assert (found.breaches, found.builds) == ([], {"active": clients})
