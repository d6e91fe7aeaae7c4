"""Queries for flavors and images: each rule of the grammar with its result."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from bus.host_health import DISABLED
from bus.queries import FindCandidates
from bus.requests import Flavor, Hints, Image
from bus.vocabulary import MAX_INT, seconds_of
from scheduler_worker.core.request import MAX_NOTES, QuestionDraft, RequestOptions, RequestReader, Unreadable
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
    ("specs", "required", "forbidden"),
    [
        ({"resources1:VGPU": "1", "resources:VCPU": "0", "resources:MEMORY_MB": "0",
          "resources:DISK_GB": "0", "trait:A": "required", "trait:B": "forbidden"}, "A", "B"),
    ],
    ids=str,
)  # fmt: skip
def test_root_traits_of_extra_specs(specs: dict[str, str], required: str, forbidden: str) -> None:
    question = asked(specs)
    assert question.root_required == tuple(required.split())
    assert question.root_forbidden == tuple(sorted([*forbidden.split(), DISABLED]))


@pytest.mark.parametrize(
    ("specs", "same", "isolated"),
    [
        (
            {"resources1:VGPU": "1", "resources2:VGPU": "1", "resources3:VGPU": "1"}
            | {"same_subtree": "1,2", "same_subtree2": "2,3, 2"},
            (("1", "2"), ("2", "3")),
            (),
        ),
    ],
    ids=str,
)  # fmt: skip
def test_same_subtree_and_isolation_of_groups(
    specs: dict[str, str], same: tuple[tuple[str, ...], ...], isolated: tuple[str, ...]
) -> None:
    question = asked(specs)
    assert (question.same_subtree, question.isolated) == (same, isolated)
    assert question.group_policy == specs.get("group_policy", "none")


def test_traits_that_an_image_requires() -> None:
    image = Image(name="i", traits_required=("A",), properties={"trait:B": "required", "hw_disk_bus": "scsi"})
    (alternative,) = alternatives(image=image, flavor=flavor({"trait:C": "required"}))
    assert groups(alternative.question) == {"": f"{REST}, +A, +B, +C"}
    assert alternative.question.root_required == ()


def test_flavors_that_would_do_instead_come_in_their_order() -> None:
    gold, silver = flavor({"resources:CUSTOM_GOLD": "1"}), flavor({"resources:CUSTOM_SILVER": "1"})
    ways = alternatives(flavor=gold, or_else=(METAL, silver))
    assert [(way.alternative_index, way.flavor) for way in ways] == [(0, gold), (1, METAL), (2, silver)]


@pytest.mark.parametrize(
    ("request_fields", "expected"),
    [
        ({"zone": "z"}, {"zone": "z"}),
        ({"cell": "c1"}, {"cell": "c1"}),
        ({"aggregates": ((uid(1, "b"), uid(2, "b")),)}, {"root_member_of": ((uid(1, "b"), uid(2, "b")),)}),
        ({"not_aggregates": (uid(1, "b"),)}, {"root_not_member_of": (uid(1, "b"),)}),
        ({"wanted_host": "host1"}, {"roots": (uid(1, "c"),)}),
        ({"forced_host": uid(1, "c")}, {"roots": (uid(1, "c"),)}),
        ({"forced_host": "rack"}, {"roots": (uid(3, "c"), uid(4, "c"))}),
        ({"forced_host": uid(3, "c"), "wanted_host": "rack"}, {"roots": (uid(3, "c"),)}),
        ({"ignore_hosts": ("host1", uid(4, "c"))}, {"not_roots": (uid(1, "c"), uid(4, "c"))}),
        ({"flavor": METAL}, {}),
    ],
    ids=str,
)
def test_hosts_and_zones_that_a_request_permits(
    request_fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    (alternative,) = alternatives(**request_fields)
    question = alternative.question
    fields = ("zone", "cell", "root_member_of", "root_not_member_of", "roots", "not_roots")
    assert {name: getattr(question, name) for name in fields if getattr(question, name)} == expected


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


@pytest.mark.parametrize(
    ("value", "amounts"),
    [
        ("preferred:8", {"FPGA": (8, 1.0)}),
        ("preferred:8:2.5", {"FPGA": (8, 2.5)}),
        ("preferred:1:-1", {"FPGA": (1, -1.0)}),
        ("8", {}),
    ],
)
def test_an_amount_that_is_only_preferred_is_not_requested(
    value: str, amounts: dict[str, tuple[int, float]]
) -> None:
    (alternative,) = alternatives(flavor=flavor({"resources:FPGA": value}))
    assert dict(alternative.preferred_amounts) == amounts
    assert ("FPGA" in alternative.asked) == (not amounts)


def test_a_preferred_amount_of_a_class_of_the_flavor_leaves_the_amount_of_the_flavor() -> None:
    (alternative,) = alternatives(flavor=flavor({"resources:VCPU": "preferred:64"}, vcpus=4))
    assert (alternative.asked["VCPU"], dict(alternative.preferred_amounts)) == (4, {"VCPU": (64, 1.0)})


def test_equal_requests_share_one_query() -> None:
    (one,), (other,) = alternatives(project="p"), alternatives(project="q", instances=3, reply_to="me")
    assert one.question is other.question
    (elsewhere,) = alternatives(zone="z")
    assert elsewhere.question is not one.question
    assert groups(one.question) == {"": "VCPU 1, MEMORY_MB 1024, DISK_GB 10"}
    assert one.flavor == SMALL and isinstance(one.flavor, Flavor)


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


@pytest.mark.parametrize(
    ("request_fields", "notes"),
    [
        ({}, []),
        ({"flavor": flavor({"resource:VGPU": "1"})},
         ["flavor.extra_specs: resource:VGPU: not known here; did you mean resources:VGPU?"]),
        ({"flavor": flavor({"zzz:q": "1"})}, ["flavor.extra_specs: zzz:q: not known here"]),
        ({"flavor": flavor({"grup_policy": "isolate"})},
         ["flavor.extra_specs: grup_policy: not known here; did you mean group_policy?"]),
        ({"flavor": flavor({"ssd": "true"})},
         ["flavor.extra_specs: ssd: has no scope, and no enabled rule reads it"]),
        ({"or_else": (flavor({"zzz:q": "1"}),)}, ["or_else[0].extra_specs: zzz:q: not known here"]),
        ({"ignore_hosts": ("hosst1",)}, ["ignore_hosts: there is no host 'hosst1'; did you mean host1?"]),
    ],
    ids=str,
)  # fmt: skip
def test_fields_without_effect_are_noted(request_fields: dict[str, Any], notes: list[str]) -> None:
    assert list(alternatives(**request_fields)[-1].notes) == notes


def test_unknown_names_of_a_request_are_noted_up_to_a_limit() -> None:
    specs = {f"zzz:q{number}": "1" for number in range(100)}
    hosts = tuple(f"host-{number}" for number in range(100))
    notes = alternatives(flavor=flavor(specs), ignore_hosts=hosts)[-1].notes
    assert len([note for note in notes if note.startswith("flavor")]) == MAX_NOTES
    assert len([note for note in notes if note.startswith("ignore_hosts")]) == MAX_NOTES


def test_each_alternative_of_a_reader_is_one_of_the_flavor() -> None:
    def requiring(trait: str) -> Callable[[QuestionDraft], None]:
        return lambda draft: draft.root_required.update({trait: "x:y"})

    def of(*traits: str) -> RequestReader:
        return RequestReader(
            alternatives=lambda *_: [requiring(trait) for trait in traits], specs=frozenset({"x:y"})
        )

    options, reading = RequestOptions(readers=(of("A", "B"), of("C"))), flavor({"x:y": "1"})
    ways = alternatives(options, flavor=reading, or_else=(SMALL,))
    found = [(way.alternative_index, way.question.root_required, way.notes) for way in ways]
    assert found == [(0, ("A", "C"), ()), (0, ("B", "C"), ()), (1, (), ())]
    assert not alternatives(flavor=reading)[0].question.root_required


def test_the_largest_flavor_is_read() -> None:
    assert alternatives(flavor=flavor(vcpus=MAX_INT))
