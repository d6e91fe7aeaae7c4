"""Converts the options of `berth boot`, of the kernel and of features, to a build request."""

import difflib
import math
import re
import uuid
from collections.abc import Sequence
from typing import Any

import msgspec

from berth.kit.boot_options import BootOptions
from berth.kit.flavors import changed_flavor, described_flavor, flavor_in_file
from berth.kit.key_values import pairs_given
from berth.settings import BadSetting
from bus.clock import Clock
from bus.messages import BuildRequested
from bus.parts import TYPES, Part, Parts, RequestParts
from bus.requests import Flavor, Hints, Image

_LONGEST_NAME = 200


_TRAIT = re.compile(r"[A-Z0-9_]{1,255}")


_LISTS = ("same_host", "different_host")


_HINTS = tuple(field.name for field in msgspec.structs.fields(Hints))


def boot_request(options: BootOptions) -> BuildRequested:
    """Convert boot options to a build request, without what the options name: the function `resolved` adds
    the uuids.
    """
    image, (hints, parts) = image_named(options.image, options.image_property), hints_given(options.hint)
    flavor, clock = described_flavor(options), Clock()
    request = BuildRequested(
        request=clock.uuid(),
        instances=tuple(clock.uuid() for _ in range(options.count)),
        flavor=flavor,
        image=image,
        zone=options.zone,
        cell=options.cell,
        or_else=tuple(flavor_instead(flavor, alternative) for alternative in options.or_else),
        at_least=options.at_least,
        wanted_host=options.host,
        forced_host=options.force_host,
        ignore_hosts=tuple(options.ignore_host),
        hints=hints,
        parts=parts.having(*parts_given(RequestParts, wait=options.wait)),
        preferred_traits=weights_given(options.prefer_trait),
        name=options.name,
    )
    request = msgspec.structs.replace(request, project=options.project or request.project)
    for more in options.more:
        request = more.requested(request)
    return request


def parts_given(owner: type[Parts[Any]], **fields: Any) -> list[Part]:
    """Return the parts of features from options that clients may write like fields of the kernel. Options
    that are not given are left out; BadSetting is raised for an option that no feature in the list has.
    """
    given = {name: value for name, value in fields.items() if value}
    if missing := given.keys() - TYPES.flat_parts(owner):
        raise BadSetting(f"--{min(missing)}: no feature of this berth has this option")
    return TYPES.read_flat(owner, given)


def image_named(name: str, properties: Sequence[str]) -> Image | None:
    """Return a request's image with the given name and properties, or None if the name is empty."""
    if properties and not name:
        raise BadSetting("--image-property is of an image: name it with --image")
    return Image(name=name, properties=pairs_given("--image-property", properties)) if name else None


def hints_given(given: Sequence[str]) -> tuple[Hints, RequestParts]:
    """Parse scheduler hints like `same_host=UUID`, which may be repeated, or `query=["=", "$zone", "a"]`."""
    known_hints = (*_HINTS, *TYPES.flat_parts(RequestParts, "hints"))
    hints: dict[str, str | list[str]] = {}
    for text in given:
        ((key, value),) = pairs_given("--hint", [text]).items()
        if key not in known_hints:
            like = difflib.get_close_matches(key, known_hints, n=1)
            meant = f", did you mean {like[0]}?" if like else ""
            listed = ", ".join(known_hints)
            raise BadSetting(f"--hint {key}: there is no such hint{meant}; there are: {listed}")
        if key in _LISTS:
            known = hints.setdefault(key, [])
            assert isinstance(known, list)
            known += [_instance(key, part.strip()) for part in value.split(",")]
        elif key in hints:
            raise BadSetting(f"--hint {key}: is given twice")
        else:
            hints[key] = value
    try:
        parts = TYPES.read_flat(RequestParts, {"hints": hints})
        return msgspec.convert(hints, Hints), RequestParts(*parts)
    except ValueError as problem:
        raise BadSetting(f"--hint: {problem}") from None


def flavor_instead(flavor: Flavor, given: str) -> Flavor:
    """Return an alternative flavor: from a JSON file, or `flavor` with changes such as
    `vcpus=2,hw:numa_nodes=` (empty: no such extra spec).
    """
    if "=" not in given:
        return flavor_in_file("--or-else", given)
    changed = changed_flavor("--or-else", flavor, given)
    name = changed.name or f"{flavor.name} with {given}"[:_LONGEST_NAME]
    return msgspec.structs.replace(changed, name=name)


def weights_given(given: Sequence[str]) -> dict[str, float]:
    """Parse the weights of preferred traits: `TRAIT` has the weight 1, `TRAIT=2.5` has the weight 2.5."""
    found = {}
    for text in given:
        name, _, number = text.partition("=")
        try:
            weight = float(number or 1)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight) or not weight:
            raise BadSetting(f"--prefer-trait {text}: {number!r} is not a weight: a number other than 0")
        if not _TRAIT.fullmatch(name):
            raise BadSetting(f"--prefer-trait {text}: {name!r} is no trait (A to Z, 0 to 9, _)")
        found[name] = weight
    return found


def _instance(hint: str, given: str) -> str:
    try:
        return str(uuid.UUID(given))
    except ValueError:
        raise BadSetting(f"--hint {hint}: {given!r} is not the uuid of an instance") from None
