"""What a build request asks placement for, and which requests are refused for what they say."""

from typing import Any

import pytest

from bus.vocabulary import Flavor, Image, ResourceGroup
from scheduler_worker.core.request import Unreadable, question_of, shape_of
from tests.support.ids import uid
from tests.support.scheduler_builders import METAL, SMALL, a_request


def flavor(**extra_specs: str) -> Flavor:
    specs = {key.replace("__", ":"): value for key, value in extra_specs.items()}
    return Flavor(name="f", vcpus=2, memory_mb=512, disk_gb=5, extra_specs=specs)


PORTS = Flavor(name="ports", extra_specs={"resources_1:CUSTOM_VF": "1"})


@pytest.mark.parametrize(
    ("asked", "resources"),
    [
        pytest.param(SMALL, {"VCPU": 1, "MEMORY_MB": 1024, "DISK_GB": 10}, id="the flavor's own figures"),
        pytest.param(
            METAL, {"CUSTOM_BAREMETAL": 1}, id="bare metal: explicit zeros suppress and are dropped"
        ),
        pytest.param(
            flavor(resources__VCPU="7"), {"VCPU": 7, "MEMORY_MB": 512, "DISK_GB": 5}, id="a class overridden"
        ),
        pytest.param(
            flavor(resources__PCPU="2"), {"PCPU": 2, "MEMORY_MB": 512, "DISK_GB": 5}, id="PCPU replaces VCPU"
        ),
        pytest.param(
            flavor(resources__VGPU="1", resources__DISK_GB="0"),
            {"VGPU": 1, "VCPU": 2, "MEMORY_MB": 512},
            id="one more class, one less",
        ),
        pytest.param(
            Flavor(name="f", vcpus=1), {"VCPU": 1}, id="what the flavor has none of is not asked for"
        ),
        pytest.param(
            Flavor(name="f", vcpus=1, extra_specs={"hw:cpu_policy": "shared", "note": "x"}),
            {"VCPU": 1},
            id="what is not about placement is ignored",
        ),
    ],
)
def test_resources(asked: Flavor, resources: dict[str, int]) -> None:
    (group,) = question_of(a_request(flavor=asked), 10).groups
    assert (group.suffix, group.resources) == ("", resources)


def test_traits_and_aggregates() -> None:
    request = a_request(
        flavor=flavor(trait__CUSTOM_FAST="required", trait__CUSTOM_OLD="forbidden"),
        image=Image(name="i", traits_required=("HW_CPU_X86_AVX2", "CUSTOM_FAST")),
        aggregates=((uid(1, "b"), uid(2, "b")), (uid(3, "b"),)),
    )
    (group,) = question_of(request, 10).groups
    assert group.required == ("CUSTOM_FAST", "HW_CPU_X86_AVX2")
    assert group.forbidden == ("CUSTOM_OLD",)
    assert group.member_of == ((uid(1, "b"), uid(2, "b")), (uid(3, "b"),))


@pytest.mark.parametrize(
    ("asked", "groups"),
    [
        pytest.param(
            flavor(resources1__CUSTOM_VF="2", resources1__VGPU="1", resources_a__CUSTOM_VF="1"),
            (
                ResourceGroup(resources={"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 5}),
                ResourceGroup(suffix="1", resources={"CUSTOM_VF": 2, "VGPU": 1}),
                ResourceGroup(suffix="_a", resources={"CUSTOM_VF": 1}),
            ),
            id="groups with a suffix",
        ),
        pytest.param(
            flavor(
                resources_a__VGPU="1",
                trait_a__CUSTOM_X="required",
                trait_a__CUSTOM_Y="forbidden",
                trait__CUSTOM_Y="required",
            ),
            (
                ResourceGroup(resources={"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 5}, required=("CUSTOM_Y",)),
                ResourceGroup(
                    suffix="_a", resources={"VGPU": 1}, required=("CUSTOM_X",), forbidden=("CUSTOM_Y",)
                ),
            ),
            id="traits of each group",
        ),
        pytest.param(
            flavor(resources1__PCPU="2", resources2__MEMORY_MB="64", resources3__DISK_GB="0"),
            (
                ResourceGroup(suffix="1", resources={"PCPU": 2}),
                ResourceGroup(suffix="2", resources={"MEMORY_MB": 64}),
            ),
            id="the flavor's own figures stand back for any group that speaks of the class",
        ),
        pytest.param(
            flavor(resources1__VGPU="0"),
            (ResourceGroup(resources={"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 5}),),
            id="a group of zeros is none",
        ),
        pytest.param(PORTS, (ResourceGroup(suffix="_1", resources={"CUSTOM_VF": 1}),), id="nothing without"),
    ],
)
def test_groups(asked: Flavor, groups: tuple[ResourceGroup, ...]) -> None:
    question = question_of(a_request(flavor=asked), 10)
    assert question.groups == groups
    assert (question.group_policy, question.same_subtree) == ("none", ())


def test_how_groups_are_tied() -> None:
    asked = flavor(
        resources_c__VCPU="2",
        resources_n__CUSTOM_VF="1",
        resources_m__CUSTOM_VF="1",
        trait_numa__HW_NUMA_ROOT="required",
        group_policy="isolate",
        same_subtree="_numa,_c, _n",
        same_subtree2="_n,_m,_n",
    )
    request = a_request(flavor=asked, cell="cell1", aggregates=((uid(1, "b"),),))
    question = question_of(request, 10)
    assert question.group_policy == "isolate"
    assert question.same_subtree == (("_numa", "_c", "_n"), ("_n", "_m"))
    assert question.groups[-1] == ResourceGroup(suffix="_numa", required=("HW_NUMA_ROOT",))
    assert [group.member_of for group in question.groups] == [((uid(1, "b"),),), (), (), (), ()]
    assert (question.cell, question.limit, question.seed) == ("cell1", 10, request.request)
    assert (question.per_host, question.after) == (1, 0)


@pytest.mark.parametrize(
    ("request_fields", "sentence"),
    [
        (
            {"flavor": flavor(trait_FOO__CUSTOM_X="required")},
            "flavor.extra_specs: group '_FOO' has traits and asks for no resources",
        ),
        (
            {"flavor": flavor(resources1__VGPU="0", trait1__CUSTOM_X="required")},
            "group '1' has traits and asks for no resources",
        ),
        (
            {"flavor": flavor(resources1__VGPU="1", trait1__CUSTOM_X="never")},
            "flavor.extra_specs['trait1:CUSTOM_X']: 'never' is neither 'required' nor 'forbidden'",
        ),
        (
            {"flavor": flavor(**{f"resources{'x' * 65}__VGPU": "1"})},
            "a suffix of 65 characters, at most 64",
        ),
        (
            {"flavor": flavor(group_policy="maybe")},
            "flavor.extra_specs['group_policy']: 'maybe' is neither 'none' nor 'isolate'",
        ),
        (
            {"flavor": flavor(resources1__VGPU="1", same_subtree="1,2")},
            "flavor.extra_specs['same_subtree']: there is no group with suffix '2'",
        ),
        ({"flavor": flavor(same_subtree="")}, "flavor.extra_specs['same_subtree']: there is no group with"),
        (
            {"flavor": PORTS, "image": Image(name="i", traits_required=("CUSTOM_X",))},
            "the group without a suffix has traits and asks for no resources",
        ),
        (
            {"flavor": PORTS, "aggregates": ((uid(1, "b"),),)},
            "aggregates: the flavor asks for nothing without",
        ),
        ({"flavor": flavor(resources__VCPU="-1")}, "'-1' is no whole number from 0 to 2147483647"),
        ({"flavor": flavor(resources__VCPU="1.5")}, "'1.5' is no whole number"),
        ({"flavor": flavor(resources__VCPU="")}, "'' is no whole number"),
        ({"flavor": flavor(resources__VCPU="2147483648")}, "'2147483648' is no whole number"),
        ({"flavor": flavor(resources__vcpu="1")}, "'vcpu' is no resource name (A-Z, 0-9 and _)"),
        ({"flavor": flavor(trait__CUSTOM_X="maybe")}, "'maybe' is neither 'required' nor 'forbidden'"),
        ({"flavor": flavor(trait__="required")}, "'' is no trait name"),
        (
            {
                "flavor": flavor(trait__CUSTOM_X="forbidden"),
                "image": Image(name="i", traits_required=("CUSTOM_X",)),
            },
            "trait CUSTOM_X is forbidden, and required as well",
        ),
        ({"aggregates": ((uid(1, "b"),), ())}, "aggregates[1]: an empty list"),
        ({"flavor": Flavor(name="nothing")}, "flavor: it asks for no resources at all"),
        ({"flavor": Flavor(name="f", vcpus=1, extra_specs={"resources:VCPU": "0"})}, "no resources at all"),
    ],
)
def test_a_request_that_means_nothing_is_refused_by_field(
    request_fields: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Unreadable) as refused:
        question_of(a_request(**request_fields), 10)
    assert sentence in str(refused.value)


def test_requests_of_one_shape_differ_only_in_what_no_filter_reads() -> None:
    like = a_request(1)
    assert shape_of(a_request(2, instances=3, project="p", reply_to="me", alternates=0)) == shape_of(like)
    assert shape_of(a_request(flavor=flavor(a="1", b="2"))) == shape_of(
        a_request(flavor=flavor(b="2", a="1"))
    )
    for other in (
        a_request(zone="z"),
        a_request(cell="c"),
        a_request(flavor=METAL),
        a_request(image=Image(name="i")),
        a_request(aggregates=((uid(1, "b"),),)),
    ):
        assert shape_of(other) != shape_of(like)
