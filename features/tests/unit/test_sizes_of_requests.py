"""The size of requests whose image or roles decide what they ask for."""

import pytest

from bus.clock import Clock
from bus.requests import Flavor, Image
from features.guest_hardware.request_reader import request_reader
from features.topology.messages import GangRole
from features.waiting.request_sizes import RequestSizes
from scheduler_worker.extension import ChoicePolicy, Orders
from scheduler_worker.testing import RequestOptions
from tests.support.index_source import RecordingSource
from tests.support.scheduler_builders import a_candidate, a_request

LARGE, SMALL = (Flavor(name=name, vcpus=vcpus) for name, vcpus in (("large", 5), ("small", 1)))


@pytest.fixture
def sizes() -> RequestSizes:
    source = RecordingSource([a_candidate(free={"VCPU": 100, "PCPU": 50})])
    options = RequestOptions(readers=(request_reader({}, ()),))
    return RequestSizes(Orders(source, options, ChoicePolicy()), source, Clock())


def test_the_image_decides_the_size_too(sizes: RequestSizes) -> None:
    image = Image(name="i", properties={"hw_cpu_policy": "dedicated"})
    assert sizes.of_request(a_request(1, flavor=LARGE)) == pytest.approx({"VCPU": 0.05})
    assert sizes.of_request(a_request(2, flavor=LARGE, image=image)) == pytest.approx({"PCPU": 0.1})


def test_each_role_has_the_size_of_its_own_flavor(sizes: RequestSizes) -> None:
    roles = (GangRole(name="server", flavor=LARGE), GangRole(name="client", flavor=SMALL, count=3))
    request = a_request(flavor=LARGE, instances=4, roles=roles)
    assert sizes.of_request(request) == pytest.approx({"VCPU": 0.08})
