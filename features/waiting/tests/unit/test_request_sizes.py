"""The size of requests: the fraction of the cloud's capacity that their instances ask for."""

from collections.abc import Mapping
from typing import Any

import pytest

from bus.aggregates import Aggregate
from bus.clock import Clock
from bus.errors import Unavailable
from bus.requests import Flavor, ResourceGroup
from features.waiting.request_sizes import RequestSizes
from scheduler_worker.extension import ChoicePolicy, Orders
from scheduler_worker.testing import RequestOptions
from tests.support.index_source import RecordingSource
from tests.support.scheduler_builders import a_candidate, a_request

CAPACITY = {"VCPU": 100, "PCPU": 50, "MEMORY_MB": 10_000, "VGPU": 10}
HOST = a_candidate(free=CAPACITY)
METAL = {"resources:VCPU": "0", "resources:MEMORY_MB": "0", "resources:VGPU": "1", "resources1:VGPU": "2"}
PINNED = {"resources:PCPU": "4"}


def flavor(vcpus: int, **specs: str) -> Flavor:
    return Flavor(name="f", vcpus=vcpus, memory_mb=1000, extra_specs=specs)


def sizes_of(source: RecordingSource) -> RequestSizes:
    return RequestSizes(Orders(source, RequestOptions(), ChoicePolicy()), source, Clock())


CASES: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "the amounts of all instances": ({"instances": 2, "flavor": flavor(5)}, {"VCPU": 0.1, "MEMORY_MB": 0.2}),
    "groups of the request": (
        {"flavor": flavor(5), "groups": (ResourceGroup(suffix="_a", resources={"VGPU": 1}),)},
        {"VCPU": 0.05, "MEMORY_MB": 0.1, "VGPU": 0.1},
    ),
    "amounts that extra specs replace or add": ({"flavor": flavor(8, **METAL)}, {"VGPU": 0.3}),
    "dedicated CPUs in place of shared ones": (
        {"flavor": flavor(4, **PINNED)}, {"PCPU": 0.08, "MEMORY_MB": 0.1}
    ),
    "a class that no host has": (
        {"flavor": flavor(5, **{"resources:CUSTOM_GONE": "1"})}, {"VCPU": 0.05, "MEMORY_MB": 0.1}
    ),
    "an invalid request": ({"flavor": flavor(5, **{"resources:VGPU": "x"})}, {}),
}  # fmt: skip


@pytest.mark.parametrize("fields, size", CASES.values(), ids=CASES.keys())
def test_the_size_of_a_request(fields: dict[str, Any], size: dict[str, float]) -> None:
    assert sizes_of(RecordingSource([HOST])).of_request(a_request(**fields)) == pytest.approx(size)


def test_an_invalid_request_leaves_the_size_of_others_with_the_same_flavor() -> None:
    sizes = sizes_of(RecordingSource([HOST]))
    assert sizes.of_request(a_request(1, flavor=flavor(5), wanted_host="removed")) == {}
    assert sizes.of_request(a_request(2, flavor=flavor(5))) == pytest.approx({"VCPU": 0.05, "MEMORY_MB": 0.1})


def test_requests_have_no_size_until_the_index_is_loaded() -> None:
    class Loading(RecordingSource):
        is_loaded = False

        @property
        def aggregates(self) -> Mapping[str, Aggregate]:
            if not self.is_loaded:
                raise Unavailable("placement's memory is not loaded yet")
            return super().aggregates

    source = Loading([HOST])
    sizes, request = sizes_of(source), a_request(flavor=flavor(5))
    assert sizes.of_request(request) == {}
    source.is_loaded = True
    assert sizes.of_request(request) == pytest.approx({"VCPU": 0.05, "MEMORY_MB": 0.1})
