"""`berth move make-room FLAVOR` accepts a flavor as changes, in a file, or by name."""

from pathlib import Path

import pytest

from berth.kit import BadSetting, boot_request, options_named
from bus.requests import Flavor
from features.planning.make_room_command import with_flavor

FILE = (
    '{"name": "m1.large", "vcpus": 4, "memory_mb": 8192, "disk_gb": 0, "extra_specs": {"hw:numa_nodes": "2"}}'
)


def flavor_of(given: str, **options: str | int) -> Flavor:
    return boot_request(with_flavor(options_named(**options), given)).flavor


def test_the_flavor_is_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "large.json").write_text(FILE)
    found = flavor_of(str(tmp_path / "large.json"))
    assert (found.name, found.vcpus, found.disk_gb) == ("m1.large", 4, 0)
    with pytest.raises(BadSetting, match=r"FLAVOR none\.json: neither KEY=VALUE nor a file"):
        flavor_of("none.json")


def test_the_flavor_has_a_name() -> None:
    assert flavor_of("metal") == flavor_of("", flavor="metal")
    assert flavor_of("m1.large", vcpus=4).name == "m1.large"
    with pytest.raises(BadSetting, match="the flavor b is named already"):
        flavor_of("b", flavor="a", vcpus=4)
    with pytest.raises(BadSetting, match="berth stores no flavors"):
        flavor_of("m1.large")
