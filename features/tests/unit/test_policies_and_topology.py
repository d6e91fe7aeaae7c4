"""Policies are tried with gangs."""

from berth.operations.request_sense import asked_amounts
from bus.requests import Flavor
from features.topology.messages import GangRole
from tests.support.scheduler_builders import a_request


def test_the_amounts_of_a_refused_request_are_those_of_all_instances() -> None:
    flavor = Flavor(name="m", vcpus=2, memory_mb=10, extra_specs={"resources:CUSTOM_X": "1"})
    gang = (GangRole(name="a", flavor=flavor, count=2), GangRole(name="b", flavor=Flavor(name="s", vcpus=1)))
    assert asked_amounts(a_request(instances=2, flavor=flavor))["CUSTOM_X"] == 2
    assert asked_amounts(a_request(instances=3, flavor=flavor, roles=gang))["VCPU"] == 5
