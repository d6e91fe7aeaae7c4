"""Queries for flavors and images: each rule of the grammar with its result."""

from collections.abc import Mapping
from typing import Any

import pytest

from bus.queries import FindCandidates
from bus.requests import Flavor, Hints, Image
from bus.vocabulary import seconds_of
from scheduler_worker.core.spec_values import Unreadable
from tests.support.ids import uid
from tests.support.rule_builders import alternatives, flavor, groups
from tests.support.scheduler_builders import METAL, SMALL


def asked(specs: Mapping[str, str], **figures: int) -> FindCandidates:
    (alternative,) = alternatives(flavor=flavor(specs, **figures))
    return alternative.question


REST = "VCPU 4, MEMORY_MB 4096, DISK_GB 5"


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        ({}, {"": REST}),
        ({"resources:VCPU": "7"}, {"": "VCPU 7, MEMORY_MB 4096, DISK_GB 5"}),
        ({"resources:PCPU": "2"}, {"": "PCPU 2, MEMORY_MB 4096, DISK_GB 5"}),
        ({"resources:VGPU": "1", "resources:DISK_GB": "0"}, {"": "VGPU 1, VCPU 4, MEMORY_MB 4096"}),
        ({"resources1:VGPU": "2"}, {"": REST, "1": "VGPU 2"}),
        ({"resources1:VCPU": "2"}, {"": "MEMORY_MB 4096, DISK_GB 5", "1": "VCPU 2"}),
        # Traits.
        ({"trait:A": "required", "trait:B": "forbidden"}, {"": f"{REST}, +A, -B"}),
        ({"trait:A": "any", "trait:B": "any"}, {"": f"{REST}, A|B"}),
        ({"trait:A": "any1", "trait:B": "any2", "trait:C": "any2"}, {"": f"{REST}, A, B|C"}),
        ({"resources_n:VGPU": "1", "trait_n:A": "any", "trait_n:B": "any", "trait_n:C": "forbidden"},
         {"": REST, "_n": "VGPU 1, -C, A|B"}),
        ({"resources_c:VCPU": "2", "trait_n:A": "required", "same_subtree": "_n,_c"},
         {"": "MEMORY_MB 4096, DISK_GB 5", "_c": "VCPU 2", "_n": "+A"}),
        (METAL.extra_specs, {"": "CUSTOM_BAREMETAL 1"}),
        # Other people's business.
        ({"quota:cpu_shares": "1", "capabilities:boot_mode": "uefi", "hw:cpu_cores": "2"},
         {"": REST}),
    ],
    ids=str,
)  # fmt: skip
def test_resources_and_traits_of_extra_specs(specs: dict[str, str], expected: dict[str, str]) -> None:
    assert groups(asked(specs)) == expected


@pytest.mark.parametrize(
    ("specs", "wanted", "preferred"),
    [
        ({}, {}, {}),
        ({"trait:A": "preferred", "trait:B": "preferred:-2.5"}, {}, {"A": 1.0, "B": -2.5}),
        ({"trait:A": "preferred"}, {"A": 3.0, "C": 1.0}, {"A": 3.0, "C": 1.0}),
    ],
)
def test_traits_that_are_only_preferred(
    specs: dict[str, str], wanted: dict[str, float], preferred: dict[str, float]
) -> None:
    (alternative,) = alternatives(flavor=flavor(specs), preferred_traits=wanted)
    assert dict(alternative.preferred) == preferred
    assert not alternative.question.groups[0].required


def test_a_preferred_amount_of_a_class_of_the_flavor_leaves_the_amount_of_the_flavor() -> None:
    (alternative,) = alternatives(flavor=flavor({"resources:VCPU": "preferred:64"}, vcpus=4))
    assert (alternative.asked["VCPU"], dict(alternative.preferred_amounts)) == (4, {"VCPU": (64, 1.0)})


@pytest.mark.parametrize(
    ("wait", "seconds"), [("", 0), ("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800)]
)
def test_durations_are_read(wait: str, seconds: float) -> None:
    assert seconds_of(wait) == seconds


NOTHING = {"resources:VCPU": "0", "resources:MEMORY_MB": "0", "resources:DISK_GB": "0"}


def refusal(**request: Any) -> str:
    with pytest.raises(Unreadable) as refused:
        alternatives(**request)
    return str(refused.value)


@pytest.mark.parametrize(
    ("specs", "sentence"),
    [
        # Groups.
        ({"resources:VCPU": "-1"}, "flavor.extra_specs['resources:VCPU']: '-1' is no whole number from 0 to"),
        ({"resources:VCPU": "2147483648"}, "'2147483648' is no whole number"),
        ({"resources:vcpu": "1"}, "'vcpu' is no resource name (A-Z, 0-9 and _)"),
        ({f"resources{'x' * 65}:VGPU": "1"}, "a suffix of 65 characters, at most 64"),
        ({"trait:": "required"}, "'' is no trait name"),
        ({"trait:A": "maybe"},
         "flavor.extra_specs['trait:A']: 'maybe' is none of required, forbidden, preferred, any"),
        ({"resources:A": "preferred:much"}, "'much' is no whole number from 1 to"),
        ({"resources:A": "preferred:0"}, "'0' is no whole number from 1 to"),
        ({"resources:A": "preferred:1:0"}, "'0' is not a weight"),
        ({"resources1:VGPU": "preferred:1"}, "preferred amounts are of the host: write the key without"),
        ({"trait:A": "preferred:much"}, "'much' is not a weight"),
        ({"resources1:VGPU": "1", "trait1:A": "preferred"}, "write the key without a suffix"),
        ({"trait_X:A": "required"}, "flavor.extra_specs: group '_X' has traits but no resources"),
        (NOTHING | {"resources1:VGPU": "1", "trait:A": "any"}, "the group without a suffix has traits"),
        ({"group_policy": "maybe"}, "['group_policy']: 'maybe' is neither 'none' nor 'isolate'"),
        ({"resources1:VGPU": "1", "same_subtree": "1,2"},
         "['same_subtree']: there is no group with suffix '2'"),
        (NOTHING, "flavor: it asks for no resources at all"),
        ({"accel:device_profile": "x"}, "['accel:device_profile']: there are no device profiles here"),
    ],
    ids=str,
)  # fmt: skip
def test_extra_specs_that_cannot_be_meant(specs: dict[str, str], sentence: str) -> None:
    assert sentence in refusal(flavor=flavor(specs))


def image(**properties: str) -> Image:
    return Image(name="i", properties=properties)


@pytest.mark.parametrize(
    ("request_fields", "sentence"),
    [
        # Flavor against image.
        ({"flavor": flavor({"trait:A": "forbidden"}), "image": Image(name="i", traits_required=("A",))},
         "trait A: required by image.traits_required, forbidden by flavor.extra_specs['trait:A']"),
        ({"flavor": flavor({"trait:A": "forbidden"}), "image": image(**{"trait:A": "required"})},
         "required by image.properties['trait:A']"),
        ({"image": image(**{"trait:A": "forbidden"})}, "an image can only have it required"),
        ({"or_else": (SMALL, flavor({"trait:A": "x"}))}, "or_else[1].extra_specs['trait:A']: 'x' is none of"),
        ({"or_else": (Flavor(name="empty"),)}, "or_else[0]: it asks for no resources at all"),
        # Where to.
        ({"forced_host": "hots1"}, "forced_host: there is no host 'hots1'; did you mean host1?"),
        ({"forced_host": "host1", "wanted_host": "host2"}, "forced_host: 'host1', but wanted_host: 'host2'"),
        ({"wanted_host": uid(1, "c"), "ignore_hosts": ("host1",)}, "is among ignore_hosts"),
        ({"aggregates": ((uid(1, "b"),), ())}, "aggregates[1]: an empty list"),
        ({"aggregates": ((uid(1, "b"),),), "not_aggregates": (uid(1, "b"),)},
         "aggregates[0]: all of it is among not_aggregates"),
        ({"zone": "a,b"}, "zone: 'a,b': one zone; its name contains no comma"),
        # How many, how long.
        ({"instances": 2, "at_least": 3}, "at_least: 3, of 2 instances"),
        # Preferred.
        ({"flavor": flavor({"trait:A": "forbidden"}), "preferred_traits": {"A": 1.0}},
         "preferred_traits: A is forbidden"),
        ({"preferred_traits": {"COMPUTE_STATUS_DISABLED": 1.0}}, "COMPUTE_STATUS_DISABLED is forbidden"),
        # Hints.
        ({"hints": Hints(same_host=(uid(7, "b"),), different_host=(uid(7, "b"),))},
         "hints.same_host and hints.different_host both name"),
    ],
    ids=str,
)  # fmt: skip
def test_contradictions_name_both_fields(request_fields: dict[str, Any], sentence: str) -> None:
    assert sentence in refusal(**request_fields)
