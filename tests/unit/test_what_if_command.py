"""`berth what-if` with a capacity plan: the options that a plan considers, and those that it refuses."""

import pytest
from typer.testing import CliRunner

from berth.__main__ import app
from berth.commands.what_if import planned_flavors
from berth.operations.boot_options import BootOptions, boot_request
from berth.settings import BadSetting

MIX = ("--mix", "VCPU:1")


@pytest.mark.parametrize(
    ("plan", "refused"),
    [
        (MIX, ("--group", "nope")),
        (MIX, ("--pack", "rack")),
        (MIX, ("--spread", "rack:2")),
        (MIX, ("--reservation", "season")),
        (MIX, ("--aggregate", "east")),
        (MIX, ("--priority", "7")),
        (MIX, ("--count", "3")),
        (MIX, ("--preempt",)),
        (MIX, ("--no-room",)),
        (MIX, ("--vcpus", "4")),
        (MIX, ("--role", "worker:3")),
        (("--without", "h1"), ("--host", "h2")),
        (("--add-hosts", "2xVCPU:64"), ("--image", "debian")),
    ],
    ids=lambda words: " ".join(words),
)
def test_a_capacity_plan_refuses_options_that_it_does_not_consider(
    plan: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    ran = CliRunner().invoke(app, ["what-if", *plan, *refused])
    assert isinstance(ran.exception, BadSetting)  # exit code 2
    assert str(ran.exception).startswith(f"{refused[0]}: a capacity plan")


def test_the_roles_of_a_gang_are_the_flavors_of_a_mix() -> None:
    gang = BootOptions(vcpus=2, memory_mb=100, disk_gb=0, role=("worker:3,vcpus=4", "head:1"))
    worker, head = "3xVCPU:4,MEMORY_MB:100", "1xVCPU:2,MEMORY_MB:100"
    assert planned_flavors(boot_request(gang)) == [worker, head]
    assert planned_flavors(boot_request(BootOptions(vcpus=2, memory_mb=0, disk_gb=0))) == ["VCPU:2"]
