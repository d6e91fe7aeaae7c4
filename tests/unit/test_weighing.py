"""One row for each weigher: its value, also for hosts without a report."""

from typing import Any

import pytest

from bus.groups import ServerGroup
from bus.requests import Image
from scheduler_worker.core.policy import ChoicePolicy
from scheduler_worker.core.rule import Alternative, HostFacts, OneHost
from scheduler_worker.core.weighing import WEIGHERS
from tests.support.ids import uid
from tests.support.rule_builders import a_wish, the_facts

HERE = uid(1, "c")
PLAIN = a_wish()
HOST = the_facts()
LINUX = a_wish(image=Image(name="linux", properties={"os_type": "linux", "hw_vm_mode": "hvm"}))
MIXED = the_facts(image_properties={"os_type=linux": 3, "hw_vm_mode=hvm": 2, "os_type=bsd": 9})


def joining(policy: Any) -> Alternative:
    return a_wish(group=ServerGroup(id=uid(1, "9"), name="web", policy=policy), members={HERE: 2})


def preferring(**traits: float) -> Alternative:
    return a_wish(preferred=traits)


def row(
    weigher: str, host: HostFacts, alternative: Alternative, value: float, id: str, **options: Any
) -> Any:
    return pytest.param(weigher, options, host, alternative, value, id=f"{weigher}: {id}")


ROWS = [
    row("ram", HOST, PLAIN, 8192, "free"),
    row("ram", the_facts(free={"CUSTOM_BAREMETAL": 1}), PLAIN, 0, "has none"),
    row("cpu", HOST, PLAIN, 8, "free"),
    row("cpu", the_facts(free={}), PLAIN, 0, "has none"),
    row("disk", HOST, PLAIN, 80, "free"),
    row("disk", the_facts(free={}), PLAIN, 0, "has none"),
    row("io_ops", the_facts(building=2, sent=1), PLAIN, 3, "its own and those sent there"),
    row("io_ops", HOST, PLAIN, 0, "not reported"),
    row("load", the_facts(load=0.75), PLAIN, 0.75, "reported"),
    row("load", HOST, PLAIN, 0, "not reported"),
    row("hypervisor_version", the_facts(hypervisor_version=8_001_002), PLAIN, 8_001_002, "reported"),
    row("hypervisor_version", the_facts(load=0.1), PLAIN, 0, "not said"),
    row("pci", HOST, PLAIN, 99, "no devices"),
    row("pci", the_facts(free={"PGPU": 3, "VGPU": 4}), PLAIN, 92, "of several classes"),
    row(
        "pci",
        the_facts(free={"PGPU": 3, "CUSTOM_GPU": 4}),
        PLAIN,
        95,
        "other classes",
        classes=["CUSTOM_GPU"],
    ),
    row("pci", the_facts(free={"PCI_DEVICE": 5000}), PLAIN, 0, "very many"),
    row("pci", HOST, PLAIN, 99, "no classes", classes=[]),
    row("soft_affinity", HOST, joining("soft-affinity"), 2, "members"),
    row("soft_affinity", HOST, joining("soft-anti-affinity"), 0, "of another policy"),
    row("soft_affinity", HOST, PLAIN, 0, "no group"),
    row("soft_anti_affinity", HOST, joining("soft-anti-affinity"), -2, "members"),
    row("soft_anti_affinity", HOST, joining("anti-affinity"), 0, "of another policy"),
    row("soft_anti_affinity", HOST, PLAIN, 0, "no group"),
    row("build_failure", the_facts(failures=1.5), PLAIN, -1.5, "fading"),
    row("build_failure", HOST, PLAIN, 0, "none"),
    row("num_instances", the_facts(instances=3, sent=1), PLAIN, 4, "its own and those sent there"),
    row("num_instances", HOST, PLAIN, 0, "not reported"),
    row("image_properties", MIXED, LINUX, 5, "alike"),
    row(
        "image_properties",
        MIXED,
        LINUX,
        6,
        "only those named count",
        image_props_weight_setting={"os_type": 2},
    ),
    row("image_properties", HOST, LINUX, 0, "not reported"),
    row("image_properties", MIXED, PLAIN, 0, "no image"),
    row("metrics", the_facts(metrics={"t": 40.0}), PLAIN, 0, "none counts"),
    row(
        "metrics",
        the_facts(metrics={"t": 40.0, "p": 3.0}),
        PLAIN,
        -34,
        "each by its ratio",
        weight_setting={"t": -1, "p": 2},
    ),
    row(
        "metrics",
        the_facts(metrics={"t": 40.0}),
        PLAIN,
        -10_000,
        "one is missing",
        weight_setting={"t": 1, "p": 1},
    ),
    row("metrics", HOST, PLAIN, -5, "not reported", weight_setting={"t": 1}, weight_of_unavailable=-5.0),
    row(
        "preferred_traits", the_facts(traits=("A", "C")), preferring(A=2.0, B=4.0, C=0.5), 2.5, "those it has"
    ),
    row("preferred_traits", HOST, preferring(A=2.0), 0, "none"),
    row("preferred_traits", HOST, PLAIN, 0, "none preferred"),
    row("image_cached", the_facts(images=("bsd", "linux")), LINUX, 1, "cached"),
    row("image_cached", the_facts(images=("bsd",)), LINUX, 0, "not cached"),
    row("image_cached", HOST, LINUX, 0, "not reported"),
    row("image_cached", the_facts(images=("",)), PLAIN, 0, "no image"),
]


@pytest.mark.parametrize(("name", "options", "host", "alternative", "value"), ROWS)
def test_weigher(
    name: str, options: dict[str, Any], host: HostFacts, alternative: Alternative, value: float
) -> None:
    assert WEIGHERS[name](**options).value(OneHost(host), alternative) == value


def test_every_weigher_has_a_row() -> None:
    assert {row.values[0] for row in ROWS} == set(WEIGHERS)


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("ram", "ram_weight_multiplier"),
        ("build_failure", "build_failure_weight_multiplier"),
        ("image_properties", "image_props_weight_multiplier"),
    ],
)
def test_aggregates_call_its_multiplier_as_nova_does(name: str, key: str) -> None:
    weigher = WEIGHERS[name]()
    assert (weigher.key or f"{weigher.name}_weight_multiplier") == key


def test_the_usual_multipliers() -> None:
    """Nova's, but for failed builds, which fade and are no million; and ours behind them."""
    assert {weigher.name: weigher.multiplier for weigher in ChoicePolicy().weighers} == {
        "ram": 1,
        "cpu": 1,
        "disk": 1,
        "io_ops": -1,
        "load": -1,
        "hypervisor_version": 1,
        "pci": 1,
        "soft_affinity": 10,
        "soft_anti_affinity": 10,
        "build_failure": 6,
        "num_instances": 0,
        "metrics": 1,
        "preferred_traits": 4,
        "image_cached": 0.25,
    }
