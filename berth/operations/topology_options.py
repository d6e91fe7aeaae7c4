"""Parses labels of hosts, constraints on their domains and roles of a gang, as an operator enters them."""

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec

from berth.settings import BadSetting
from bus.domains import BUILT_IN_LEVELS, NO_TOPOLOGY, DomainConstraints, GangRole
from bus.errors import NOT_JSON
from bus.requests import Flavor

_LEVEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_SPREAD = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,31})(?::([1-9][0-9]{0,5}))?")
_FIGURES = ("vcpus", "memory_mb", "disk_gb")


def topology_given(pack: str, spread: str, prefer: bool = False) -> DomainConstraints:
    if prefer and not (pack or spread):
        raise BadSetting("--prefer-topology is about --pack or --spread: give one of them")
    strength = {"pack_strength": "preferred", "spread_strength": "preferred"} if prefer else {}
    if pack and not _LEVEL.fullmatch(pack):
        raise BadSetting(f"--pack {pack}: takes a level, such as rack")
    if not pack and not spread:
        return NO_TOPOLOGY
    level, most = "", 1
    if spread:
        match = _SPREAD.fullmatch(spread)
        if match is None:
            raise BadSetting(f"--spread {spread}: takes LEVEL or LEVEL:K, such as rack:2")
        level, most = match[1], int(match[2] or 1)
    return msgspec.convert(
        {"pack": pack, "spread": level, "max_per_domain": most, **strength}, DomainConstraints
    )


def labels_given(given: Sequence[str]) -> dict[str, str]:
    """Return the labels in texts such as `rack=r1`, by level."""
    labels = domains_given(given)
    for level in labels:
        if level in BUILT_IN_LEVELS:
            raise BadSetting(f"{level}: every host has this level; a label cannot set it")
    return labels


def domains_given(given: Sequence[str]) -> dict[str, str]:
    """Return the domains in texts such as `rack=r1` or `zone=z1`, by level."""
    domains = {}
    for text in given:
        level, equals, label = text.partition("=")
        if not equals or not _LEVEL.fullmatch(level) or not label.strip():
            raise BadSetting(f"{text!r}: a label is LEVEL=NAME, such as rack=r1")
        domains[level] = label.strip()
    return domains


def roles_given(given: Sequence[str], flavor: Flavor) -> tuple[GangRole, ...]:
    """Return the roles of a gang from texts such as `worker:3,vcpus=4`, or from a JSON file with a list of
    roles if a text ends in .json.

    A role has the flavor of the command's other options, with the given changes.
    """
    roles: list[GangRole] = []
    for text in given:
        if text.endswith(".json"):
            roles += _roles_of_file(text)
            continue
        head, *changes = text.split(",")
        name, colon, count = head.partition(":")
        if not name or (colon and not count.isdecimal()):
            raise BadSetting(f"--role {text}: takes NAME:COUNT,KEY=VALUE,... or a file named *.json")
        figures, specs = {}, dict(flavor.extra_specs)
        for change in changes:
            key, equals, value = change.partition("=")
            if not equals:
                raise BadSetting(f"--role {text}: {change!r} is not KEY=VALUE")
            if key not in _FIGURES:
                specs[key] = value
            elif value.isdecimal():
                figures[key] = int(value)
            else:
                raise BadSetting(f"--role {text}: {key} takes a whole number")
        of_role = msgspec.structs.replace(flavor, name=f"{flavor.name}-{name}", extra_specs=specs, **figures)
        roles.append(GangRole(name=name, flavor=of_role, count=int(count or 1)))
    return tuple(roles)


def _roles_of_file(path: str) -> list[GangRole]:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=list[GangRole])
    except OSError as problem:
        raise BadSetting(f"--role {path}: {problem.strerror}") from None
    except NOT_JSON as problem:
        raise BadSetting(f"--role {path}: no list of roles in JSON: {problem}") from None
