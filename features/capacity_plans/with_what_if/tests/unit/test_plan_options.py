"""`berth request what-if` with a capacity plan: options that a plan considers, and those that it refuses."""

import pytest

from berth.kit import BadSetting, boot_request, options_named
from berth.kit.testing import FEATURES
from features.capacity_plans.with_what_if.what_if_part import planned_flavors
from tests.support.command_line import typed

MIX = ("--mix", "VCPU:1")
OF_FEATURES = (
    ("groups", ("--group", "nope")),
    ("reservations", ("--reservation", "season")),
    ("topology", ("--pack", "rack")),
    ("topology", ("--spread", "rack:2")),
    ("topology", ("--role", "worker:3")),
    ("waiting", ("--priority", "7")),
)


@pytest.mark.parametrize(
    ("plan", "refused"),
    [
        *(
            pytest.param(
                MIX, words, marks=pytest.mark.skipif(feature not in FEATURES, reason="is not listed")
            )
            for feature, words in OF_FEATURES
        ),
        (MIX, ("--aggregate", "east")),
        (MIX, ("--count", "3")),
        (MIX, ("--preempt",)),
        (MIX, ("--no-room",)),
        (MIX, ("--vcpus", "4")),
        (("--without", "h1"), ("--host", "h2")),
        (("--add-hosts", "2xVCPU:64"), ("--image", "debian")),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_capacity_plan_refuses_options_that_it_does_not_consider(
    plan: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    ran = typed("request", "what-if", *plan, *refused)
    assert isinstance(ran.exception, BadSetting)  # exit code 2
    assert str(ran.exception).startswith(f"{refused[0]}: a capacity plan")


@pytest.mark.skipif("topology" not in FEATURES, reason="the feature of roles is not listed")
def test_the_roles_of_a_gang_are_the_flavors_of_a_mix() -> None:
    gang = options_named(vcpus=2, memory_mb=100, disk_gb=0, role=("worker:3,vcpus=4", "head:1"))
    worker, head = "3xVCPU:4,MEMORY_MB:100", "1xVCPU:2,MEMORY_MB:100"
    assert planned_flavors(boot_request(gang)) == [worker, head]
    assert planned_flavors(boot_request(options_named(vcpus=2, memory_mb=0, disk_gb=0))) == ["VCPU:2"]
