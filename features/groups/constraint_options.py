"""Parses constraints on domains, as an operator enters them."""

import re

import msgspec

from berth.kit import BadSetting
from features.groups.constraints import NO_TOPOLOGY, DomainConstraints

_LEVEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_SPREAD = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,31})(?::([1-9][0-9]{0,5}))?")


def topology_given(pack: str, spread: str, prefer: bool = False) -> DomainConstraints:
    """Return the constraints that the options give; raise BadSetting for a level that cannot be one."""
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
