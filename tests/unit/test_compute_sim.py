"""Simulated agents: planned faults by seed, durations by name, fleets of hosts."""

import pytest

from bus.messages import BuildOrdered
from bus.requests import BuildSpec, Flavor, Image
from compute_sim import CrashPlan, Durations, FaultPlan, Hardware, fleet
from compute_sim.guests import MAX_CACHED, Guests, guest_of
from tests.support.ids import uid

MANY = [uid(number, "b") for number in range(4000)]


def share(plan: FaultPlan, kind: str, attempt: int = 1) -> float:
    return sum(plan.fate(build, attempt).kind == kind for build in MANY) / len(MANY)


def test_one_build_in_ten_fails_on_its_first_host_and_succeeds_on_the_next() -> None:
    plan = FaultPlan(seed=1, reschedule=0.1)
    assert share(plan, "reschedule") == pytest.approx(0.1, abs=0.02)
    assert share(plan, "built") == pytest.approx(0.9, abs=0.02)
    assert share(plan, "built", attempt=2) == 1.0


def test_every_kind_of_fault_takes_its_share_of_every_attempt_when_told() -> None:
    plan = FaultPlan(seed=2, reschedule=0.2, abort=0.1, hang=0.05, first_attempt_only=False)
    for attempt in (1, 2, 3):
        assert share(plan, "reschedule", attempt) == pytest.approx(0.2, abs=0.03)
        assert share(plan, "abort", attempt) == pytest.approx(0.1, abs=0.03)
        assert share(plan, "hang", attempt) == pytest.approx(0.05, abs=0.02)


def test_a_fate_depends_on_seed_build_and_attempt_and_on_nothing_else() -> None:
    def fates(seed: int) -> list[object]:
        times = Durations.parse("exponential:0.2")
        plan = FaultPlan(seed=seed, reschedule=0.3, first_attempt_only=False, durations=times)
        return [plan.fate(build, attempt) for build in MANY[:200] for attempt in (1, 2)]

    assert fates(1) == fates(1)
    assert fates(1) != fates(2)
    first, second = (
        FaultPlan(seed=7, reschedule=1.0).fate(uid(1, "b"), 1),
        FaultPlan(seed=7).fate(uid(1, "b"), 1),
    )
    assert (first.kind, first.cause) == ("reschedule", "no space left on the image cache")  # on any machine
    assert (second.kind, second.cause) == ("built", "")


def test_shares_beyond_the_whole_are_refused() -> None:
    with pytest.raises(ValueError, match="shares"):
        FaultPlan(reschedule=0.8, abort=0.3)


@pytest.mark.parametrize(
    ("words", "mean", "least"),
    [
        ("constant:0.5", 0.5, 0.5),
        ("uniform:1,3", 2.0, 1.0),
        ("exponential:0.2", 0.2, 0.0),
        ("lognormal:1,0.5", 1.133, 0.0),  # exp(0.5² / 2)
    ],
)
def test_build_times_follow_their_distribution(words: str, mean: float, least: float) -> None:
    plan = FaultPlan(seed=3, durations=Durations.parse(words))
    seconds = [plan.fate(build, 1).seconds for build in MANY]
    assert sum(seconds) / len(seconds) == pytest.approx(mean, rel=0.06)
    assert min(seconds) >= least


@pytest.mark.parametrize("words", ["", "constant", "normal:1", "uniform:1", "exponential:-1", "constant:x"])
def test_other_words_are_no_duration(words: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        Durations.parse(words)


def test_crashes_come_about_as_often_as_planned_and_the_same_every_time() -> None:
    plan = CrashPlan(seed=1, orders=50)
    gaps = [plan.next_after("agent1", crash) for crash in range(500)]
    assert sum(gaps) / len(gaps) == pytest.approx(50, rel=0.15)
    assert gaps == [plan.next_after("agent1", crash) for crash in range(500)]
    assert CrashPlan().next_after("agent1", 0) == 0


def test_a_fleet_is_dealt_out_evenly_and_is_the_same_every_time() -> None:
    agents = fleet(
        cells=2, hosts=11, agents_per_cell=2, hardware=Hardware(zones=("north", "south"), baremetal=2)
    )
    assert [(a.agent, a.cell, len(a.hosts)) for a in agents] == [
        ("cell1-agent1", "cell1", 4),
        ("cell2-agent1", "cell2", 4),
        ("cell1-agent2", "cell1", 3),
        ("cell2-agent2", "cell2", 2),
    ]
    hosts = [host for agent in agents for host in agent.hosts]
    assert len({host.root for host in hosts}) == len({host.host for host in hosts}) == 13
    assert all(host.host.startswith(f"{agent.cell}-") for agent in agents for host in agent.hosts)
    assert {host.zone for host in hosts} == {"north", "south"}
    assert agents == fleet(
        cells=2, hosts=11, agents_per_cell=2, hardware=Hardware(zones=("north", "south"), baremetal=2)
    )
    assert hosts[0].root != fleet(cells=2, hosts=11, seed=1)[0].hosts[0].root


def test_hosts_have_what_a_hypervisor_has_and_nodes_are_left_to_ironic() -> None:
    (agent,) = fleet(cells=1, hosts=1, hardware=Hardware(baremetal=1, vcpus=16, memory_mb=4096, disk_gb=100))
    host, node = agent.hosts
    assert {name: (it.capacity, it.max_unit) for name, it in host.inventory.items()} == {
        "VCPU": (64, 16),
        "MEMORY_MB": (3584, 4096),
        "DISK_GB": (100, 100),
    }
    assert (node.metal, node.inventory, host.metal) == ("baremetal", {}, "")


def test_a_fleet_may_have_several_architectures_in_each_zone() -> None:
    (agent,) = fleet(
        cells=1, hosts=8, hardware=Hardware(zones=("a", "b"), architectures=("x86_64", "aarch64"))
    )
    assert {(host.zone, host.architecture) for host in agent.hosts} == {
        (zone, architecture) for zone in "ab" for architecture in ("x86_64", "aarch64")
    }
    for host in agent.hosts:
        assert ("HW_CPU_X86_AVX2" in host.traits) == (host.architecture == "x86_64")
    assert [host.ip for host in agent.hosts] == [f"10.0.0.{number}" for number in range(1, 9)]


def an_order(build: int, attempt: int = 1, root: int = 1, image: Image | None = None) -> BuildOrdered:
    return BuildOrdered(
        build=uid(build, "b"),
        attempt=attempt,
        cell="c",
        agent="a",
        root=uid(root, "c"),
        host="h",
        spec=BuildSpec(flavor=Flavor(name="f"), image=image),
    )


def test_a_host_counts_its_guests_and_keeps_their_images() -> None:
    guests, scsi = Guests(), {"hw_disk_bus": "scsi"}
    debian, other = Image(name="debian", properties=scsi), Image(name="other", properties={**scsi, "a": "b"})
    for order in (an_order(1, image=debian), an_order(2, image=other), an_order(3, root=2), an_order(4)):
        assert guests.add(guest_of(order))
        assert not guests.add(guest_of(order))  # it is there once
    host = guests.on[uid(1, "c")]
    assert (host.instances, list(host.images)) == (3, ["debian", "other"])
    assert dict(host.properties) == {"hw_disk_bus=scsi": 2, "a=b": 1}
    guests.remove(uid(2, "b"), range(2))
    assert (host.instances, list(host.images), dict(host.properties)) == (
        2,
        ["debian", "other"],
        {"hw_disk_bus=scsi": 1},
    )
    for number in range(MAX_CACHED + 1):
        guests.add(guest_of(an_order(1, attempt=number + 2, image=Image(name=f"image{number}"))))
    assert next(iter(host.images)) == "image1" and len(host.images) == MAX_CACHED
    guests.remove(uid(1, "b"), range(100))
    assert host.instances == 1
    assert {(record.build, record.root) for some in guests.there.values() for record in some.values()} == {
        (uid(3, "b"), uid(2, "c")),
        (uid(4, "b"), uid(1, "c")),
    }
