"""Reads options of the form KEY=VALUE, and labels of hosts."""

import re
from collections.abc import Sequence

from berth.settings import BadSetting
from bus.domains import BUILT_IN_LEVELS

_LEVEL = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,31}")


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


def pairs_given(option: str, given: Sequence[str]) -> dict[str, str]:
    """Return the values of a repeated option KEY=VALUE as a dictionary; raise BadSetting if one has no key or
    no "=".
    """
    found = [text.partition("=") for text in given]
    for text, (key, equals, _) in zip(given, found, strict=True):
        if not key or not equals:
            raise BadSetting(f"{option} takes KEY=VALUE, not {text!r}")
    return {key: value for key, _, value in found}
