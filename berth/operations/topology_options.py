"""Parses labels of hosts and constraints on their domains, as an operator enters them."""

import re
from collections.abc import Sequence

import msgspec

from berth.settings import BadSetting
from bus.domains import BUILT_IN_LEVELS, NO_TOPOLOGY, DomainConstraints

_LEVEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")
_SPREAD = re.compile(r"([A-Za-z][A-Za-z0-9_-]{0,31})(?::([1-9][0-9]{0,5}))?")


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
