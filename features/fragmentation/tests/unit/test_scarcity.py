"""The profile `balanced`: what it says is what it chooses, on an empty cloud, a scarce one and a full one."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from bench.quality.__main__ import in_memory, policy_named
from bench.quality.cloud import Asked, HostSpec, TraceCloud, host_number, provider_id
from bench.quality.contention import nearly_empty
from berth.kit.decision_output import funnel
from bus.decisions import Decision, Record, RecordedHost, RecordedScale
from bus.queries import FindCandidates
from bus.requests import Flavor, ResourceGroup
from bus.vocabulary import Allocations
from features.fragmentation.core.scarcity import needs_parts
from scheduler_worker.core.extension import shape_of
from tests.support.command_line import typed
from tests.support.ids import uid

ROOT = Path(__file__).parents[4]
HOST = HostSpec({"VCPU": 16, "MEMORY_MB": 64})
SMALL = Asked(Flavor(name="small", vcpus=1, memory_mb=4))
LARGE = Asked(Flavor(name="large", vcpus=8, memory_mb=32))


class CloudOfEqualHosts:
    """Equal hosts on which instances are placed, with the number of each instance's host."""

    def __init__(self, hosts: int) -> None:
        self.policy = policy_named("balanced")
        self._cloud = TraceCloud([HOST] * hosts, self.policy, 1)

    def place(self, asked: Asked) -> tuple[int, Allocations]:
        held = self._cloud.place(asked)
        assert held is not None
        return host_number(held), held

    def use(self, cpus: Sequence[int]) -> None:
        """Use these processors of each host, and as much of its memory."""
        for host, used in enumerate(cpus):
            amounts = {"VCPU": used, "MEMORY_MB": 4 * used}
            self._cloud.placement.change({provider_id(host): amounts}, 1)

    def ask(self, asked: Asked, times: int) -> None:
        """Let requests be counted as usual, without instances that remain."""
        for _ in range(times):
            _, held = self.place(asked)
            self._cloud.release(held)

    def decided_by(self) -> str:
        (weigher,) = self.policy.of_ways
        assert weigher.decided_by is not None
        return weigher.decided_by()

    def close(self) -> None:
        self._cloud.close()


@pytest.fixture
def cloud() -> Iterator[CloudOfEqualHosts]:
    opened = CloudOfEqualHosts(6)
    opened.ask(SMALL, 20)
    opened.ask(LARGE, 20)
    yield opened
    opened.close()


def test_a_boot_for_each_host_of_an_empty_cloud_uses_all_hosts() -> None:
    found = nearly_empty(in_memory("balanced"), 1)
    assert (found["hosts used"], found["lost with one host"]) == (100, 1)


@dataclass(frozen=True)
class DocumentedChoice:
    """The hosts, by number, that small instances must get if some processors of each host are used."""

    used: tuple[int, ...]
    instances: int
    hosts: set[int]


CHOICES = {
    "spreads instances while much is free": DocumentedChoice((0, 0, 0, 0, 0, 0), 6, {0, 1, 2, 3, 4, 5}),
    # a large instance fits only on hosts 4 and 5
    "keeps hosts for usual requests that become scarce": DocumentedChoice(
        (10, 10, 10, 10, 8, 8), 24, {0, 1, 2, 3}
    ),
    "uses small rests first once little is free": DocumentedChoice((15, 16, 16, 16, 16, 8), 1, {0}),
}


def text_of(document: str) -> str:
    if document == "berth policy list":
        rules = json.loads(typed("policy", "list", "--json").output)
        return f"balanced {rules['profiles']['balanced']}"
    return (ROOT / document).read_text("utf-8")


@pytest.mark.parametrize(
    "document", ["features/fragmentation/README.md", "docs/scheduler.md", "berth policy list"]
)
def test_documents_say_what_is_chosen(document: str) -> None:
    (sentence,) = re.findall(r"balanced`? (spreads [\w, ]+)", " ".join(text_of(document).split()))
    assert re.split(", and |, ", sentence.strip()) == [*CHOICES]


@pytest.mark.parametrize("said", CHOICES)
def test_small_instances_get_the_hosts_that_documents_say(said: str, cloud: CloudOfEqualHosts) -> None:
    choice = CHOICES[said]
    cloud.use(choice.used)
    assert {cloud.place(SMALL)[0] for _ in range(choice.instances)} == choice.hosts


def test_the_scarcest_shape_is_named_once_one_is_scarce(cloud: CloudOfEqualHosts) -> None:
    cloud.place(SMALL)
    assert cloud.decided_by() == ""
    cloud.use((10, 10, 10, 10, 8, 7))
    cloud.place(SMALL)
    assert cloud.decided_by() == "scarce: 32 MEMORY_MB, 8 VCPU (2 more fit)"


def test_the_profile_packs_once_most_of_the_demand_is_scarce(cloud: CloudOfEqualHosts) -> None:
    cloud.place(SMALL)
    assert not cloud.policy.packs
    cloud.use((10, 10, 10, 10, 8, 7))
    cloud.place(SMALL)
    assert cloud.policy.packs


def test_the_profile_pack_packs_from_the_beginning() -> None:
    assert policy_named("pack").packs
    assert not policy_named("spread").packs


def test_shapes_of_parts_are_those_with_groups_for_devices_or_numa_nodes() -> None:
    gpu = ResourceGroup(suffix="_g", resources={"CUSTOM_GPU": 1})
    node = ResourceGroup(suffix="_n", resources={"VCPU": 2, "MEMORY_MB": 8})
    port = ResourceGroup(suffix="_p", resources={"NET_BW_EGR_KILOBIT_PER_SEC": 1000})
    plain = ResourceGroup(resources={"VCPU": 2, "CUSTOM_GPU": 1})
    for group, needs in ((gpu, True), (node, True), (port, False), (plain, False)):
        assert needs_parts(shape_of(FindCandidates(groups=(group,)))) == needs


def test_the_scarcest_shape_is_printed_above_the_ranked_hosts() -> None:
    scale = RecordedScale("fragmentation", 1.0, 0.0, 1.0, False, "scarce: 8 VCPU (2 more fit)")
    record = Record(seed="s", scales=(scale,), hosts=(RecordedHost(uid(1), "host1", (1.0,)),))
    lines = [line.plain for line in funnel(Decision(record=record), 100)]
    assert "    fragmentation: scarce: 8 VCPU (2 more fit)" in lines
