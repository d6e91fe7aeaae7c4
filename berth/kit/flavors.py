"""Reads flavors from the options that describe them."""

import difflib
import re
from pathlib import Path

import msgspec

from berth.kit.boot_options import BootOptions
from berth.kit.key_values import pairs_given
from berth.settings import BadSetting
from bus.errors import NOT_JSON
from bus.requests import Flavor

_NEXT = re.compile(r",(?=[^,=]+=)")  # the commas between `name=value` parts, but no comma inside a value


_FIGURES = ("vcpus", "memory_mb", "disk_gb")


_METAL_NAME = "metal"


_DEFAULT_SIZE = {"vcpus": 1, "memory_mb": 512, "disk_gb": 1}


_METAL = {"resources:CUSTOM_BAREMETAL": "1"} | {
    f"resources:{name}": "0" for name in ("VCPU", "MEMORY_MB", "DISK_GB")
}


def described_flavor(options: BootOptions) -> Flavor:
    """Return the flavor that the options describe; raise BadSetting if they only give a name that berth does
    not know.
    """
    name = options.flavor
    described = {key: size for key in _FIGURES if (size := getattr(options, key)) is not None}
    if name and name != _METAL_NAME and not described and not options.extra_spec:
        meant = f" Did you mean {_METAL_NAME}?" if difflib.get_close_matches(name, [_METAL_NAME]) else ""
        raise BadSetting(
            f"--flavor {name}: berth stores no flavors; only `{_METAL_NAME}` is known by its name."
            f"{meant} Describe the flavor with --vcpus, --memory-mb, --disk-gb or --spec"
        )
    metal = _METAL if name == _METAL_NAME else {}
    specs = {**metal, **pairs_given("--extra-spec", options.extra_spec)}
    return Flavor(name=name or "custom", extra_specs=specs, **(_DEFAULT_SIZE | described))


def flavor_in_file(option: str, path: str) -> Flavor:
    """Read a flavor from a JSON file; raise BadSetting with the option's name if that is impossible."""
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=Flavor)
    except OSError as problem:
        raise BadSetting(f"{option} {path}: neither KEY=VALUE nor a file: {problem.strerror}") from None
    except NOT_JSON as problem:
        raise BadSetting(f"{option} {path}: no flavor in JSON: {problem}") from None


def changed_flavor(option: str, flavor: Flavor, given: str) -> Flavor:
    """Return `flavor` with the changes in a text such as `vcpus=2,hw:numa_nodes=`. The result has the name in
    the text, or no name.
    """
    figures: dict[str, int] = {}
    name, specs = "", dict(flavor.extra_specs)
    for key, value in pairs_given(option, _NEXT.split(given)).items():
        if key in _FIGURES:
            if not value.isdecimal():
                raise BadSetting(f"{option} {key}={value}: takes a whole number")
            figures[key] = int(value)
        elif key == "name":
            name = value
        elif ":" not in key and (like := difflib.get_close_matches(key, _FIGURES, n=1, cutoff=0.8)):
            raise BadSetting(f"{option} {key}=: did you mean {like[0]}=?")
        elif value:
            specs[key] = value
        elif specs.pop(key, None) is None:
            raise BadSetting(f"{option} {key}=: the flavor has no such extra spec to leave out")
    return msgspec.structs.replace(flavor, name=name, extra_specs=specs, **figures)
