"""The request that the options of `berth boot` describe."""

import pytest

from berth.commands.builds import boot_request, image_named
from berth.settings import BadSetting
from bus.requests import BuildSpec, Image
from ironic_sync.agent.core.instance import instance_info


def test_an_image_reaches_ironic_as_it_was_said() -> None:
    image = image_named(
        "debian",
        [
            "image_source=http://img/debian",
            "image_checksum=0123",
            "kernel=file:///k=1",
            "os_distro=debian",
        ],
    )
    request = boot_request(0, 0, 20, "metal", ["capabilities:boot_mode=uefi"], 1, "", "", image)
    assert request.image == image and image is not None and image.name == "debian"
    info = instance_info(BuildSpec(flavor=request.flavor, image=request.image))
    expected = {
        "image_source": "http://img/debian",
        "image_checksum": "0123",
        "kernel": "file:///k=1",
        "root_gb": "20",
        "capabilities": {"boot_mode": "uefi"},
    }
    assert {name: info[name] for name in expected} == expected
    assert "os_distro" not in info
    assert request.flavor.extra_specs["resources:DISK_GB"] == "0", "a node has one resource"


def test_an_image_without_a_source_is_named_by_its_name() -> None:
    assert image_named("debian", []) == Image(name="debian")
    assert (
        instance_info(
            BuildSpec(
                flavor=boot_request(0, 0, 0, "metal", (), 1, "", "").flavor, image=image_named("debian", [])
            )
        )["image_source"]
        == "debian"
    )
    assert image_named("", []) is None


@pytest.mark.parametrize(
    ("name", "properties", "problem"),
    [
        ("debian", ["kernel"], "--image-property takes KEY=VALUE, not 'kernel'"),
        ("debian", ["=k"], "--image-property takes KEY=VALUE, not '=k'"),
        ("", ["kernel=k"], "name it with --image"),
    ],
)
def test_what_cannot_be_meant_is_refused(name: str, properties: list[str], problem: str) -> None:
    with pytest.raises(BadSetting, match=problem):
        image_named(name, properties)
