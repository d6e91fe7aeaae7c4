"""The nodes of Ironic that are problems: those for which Ironic waits for an operator, read from its API."""

from berth import composition
from berth.problems.reading import ProblemList
from berth.settings import Settings
from bus.delivery.runner import Bus
from bus.local import LocalBroker, LocalTransport
from tests.support.simulated_ironic import a_served_ironic


async def test_nodes_that_wait_for_an_operator_are_listed_and_an_ironic_that_is_away() -> None:
    async with Bus(LocalTransport(LocalBroker())) as bus:
        async with a_served_ironic() as ironic:
            settings = Settings().having(cells=("c1",), ironic_api=ironic.url)
            problems = ProblemList(bus, settings, composition.queues)
            [stuck] = [each for each in await problems.read() if each.kind == "node-stuck"]
            assert stuck.says.endswith("in the state clean failed: metal00003.")
            assert stuck.since > 0 and "baremetal node show metal00003" in stuck.do
        assert "ironic-unreachable" in {each.kind for each in await problems.read()}
