"""Parses the options of `berth boot` that are not plain values, and explains errors in them."""

import difflib
import math
import re
import uuid
from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer
from typer.core import TyperCommand

from berth.settings import BadSetting
from bus.errors import NOT_JSON
from bus.requests import Flavor, Hints

_LONGEST_NAME = 200
_TRAIT = re.compile(r"[A-Z0-9_]{1,255}")
_TIME = re.compile(r"[0-9]{1,6}[smhd]")
_NEXT = re.compile(r",(?=[^,=]+=)")  # a comma inside a value stays
_FIGURES = ("vcpus", "memory_mb", "disk_gb")
_LISTS = ("same_host", "different_host")
_HINTS = tuple(field.name for field in msgspec.structs.fields(Hints))


class WaitingCommand(TyperCommand):
    """`--wait` follows a request to its end; `--wait 30m` also states how long it may wait for capacity."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        told = []
        for position, arg in enumerate(args):
            after = args[position + 1] if position + 1 < len(args) else ""
            told.append("--wait=" if arg == "--wait" and not _TIME.fullmatch(after) else arg)
        return super().parse_args(ctx, told)


def waiting_time(wait: str | None) -> str:
    """Return the waiting time of the request."""
    if wait and not _TIME.fullmatch(wait):
        raise BadSetting(f"--wait {wait}: takes a time (90s, 30m, 12h, 7d), or nothing to follow it only")
    return wait or ""


def pairs(option: str, given: Sequence[str]) -> dict[str, str]:
    found = [one.partition("=") for one in given]
    for one, (key, equals, _) in zip(given, found, strict=True):
        if not key or not equals:
            raise BadSetting(f"{option} takes KEY=VALUE, not {one!r}")
    return {key: value for key, _, value in found}


def hints_given(given: Sequence[str]) -> Hints:
    """`same_host=UUID`, more than once for more than one; `query=["=", "$zone", "a"]`."""
    said: dict[str, str | list[str]] = {}
    for one in given:
        ((key, value),) = pairs("--hint", [one]).items()
        if key not in _HINTS:
            like = difflib.get_close_matches(key, _HINTS, n=1)
            meant = f", did you mean {like[0]}?" if like else ""
            raise BadSetting(f"--hint {key}: there is no such hint{meant}; there are: {', '.join(_HINTS)}")
        if key in _LISTS:
            known = said.setdefault(key, [])
            assert isinstance(known, list)
            known += [_uuid(f"--hint {key}", "an instance", part) for part in value.split(",")]
        elif key in said:
            raise BadSetting(f"--hint {key}: is said twice")
        else:
            said[key] = value
    try:
        return msgspec.convert(said, Hints)
    except msgspec.ValidationError as problem:
        raise BadSetting(f"--hint: {problem}") from None


def flavor_instead(flavor: Flavor, given: str) -> Flavor:
    """Another flavor: the JSON of one in a file, or what differs: `vcpus=2,resources:CUSTOM_GOLD=`."""
    if "=" not in given:
        try:
            return msgspec.json.decode(Path(given).read_bytes(), type=Flavor)
        except OSError as problem:
            raise BadSetting(f"--or-else {given}: neither KEY=VALUE nor a file: {problem.strerror}") from None
        except NOT_JSON as problem:
            raise BadSetting(f"--or-else {given}: no flavor in JSON: {problem}") from None
    figures: dict[str, int] = {}
    name, specs = "", dict(flavor.extra_specs)
    for key, value in pairs("--or-else", _NEXT.split(given)).items():
        if key in _FIGURES:
            if not value.isdecimal():
                raise BadSetting(f"--or-else {key}={value}: takes a whole number")
            figures[key] = int(value)
        elif key == "name":
            name = value
        elif ":" not in key and (like := difflib.get_close_matches(key, _FIGURES, n=1, cutoff=0.8)):
            raise BadSetting(f"--or-else {key}=: did you mean {like[0]}=?")
        elif value:
            specs[key] = value
        elif specs.pop(key, None) is None:
            raise BadSetting(f"--or-else {key}=: the flavor has no such extra spec to leave out")
    return msgspec.structs.replace(
        flavor, name=name or f"{flavor.name} with {given}"[:_LONGEST_NAME], extra_specs=specs, **figures
    )


def weights_given(given: Sequence[str]) -> dict[str, float]:
    """`TRAIT` counts 1, `TRAIT=2.5` that."""
    found = {}
    for one in given:
        name, _, number = one.partition("=")
        try:
            weight = float(number or 1)
        except ValueError:
            weight = math.nan
        if not math.isfinite(weight) or not weight:
            raise BadSetting(f"--prefer-trait {one}: {number!r} is no weight, a number other than 0")
        if not _TRAIT.fullmatch(name):
            raise BadSetting(f"--prefer-trait {one}: {name!r} is no trait (A to Z, 0 to 9, _)")
        found[name] = weight
    return found


def _uuid(option: str, of: str, given: str) -> str:
    try:
        return str(uuid.UUID(given.strip()))
    except ValueError:
        raise BadSetting(f"{option}: {given.strip()!r} is not the uuid of {of}") from None
