"""The lower bounds of requirements, and the extras."""

import re
import sys
import tomllib
from collections.abc import Iterator

import pytest

from ironic_sync.openstack import Access
from tests.support.snippets import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DELIVERED = ("keystone", "nova", "traces")  # extras of users; the others are for developers


def requirements() -> list[str]:
    return [
        *PROJECT["dependencies"],
        *(each for name in DELIVERED for each in PROJECT["optional-dependencies"][name]),
    ]


def numbers(version: str) -> tuple[int, ...]:
    """Return the numbers of a version without zeros at its end: 2.0 and 2.0.0 are equal."""
    found = [int(each) for each in version.split(".")]
    while found[-1:] == [0]:
        found.pop()
    return tuple(found)


def lower_bounds() -> Iterator[tuple[str, tuple[int, ...]]]:
    for requirement in requirements():
        found = re.fullmatch(r"([\w.-]+)(?:\[[\w,]+\])?>=([\d.]+)(?:;.*)?", requirement)
        assert found, f"{requirement}: give the lowest version as >=VERSION"
        yield found[1], numbers(found[2])


def test_make_lowest_installs_the_lower_bounds() -> None:
    """If this fails, run `make lock`, then `make lowest`."""
    lock = (ROOT / "requirements-lowest.lock").read_text(encoding="utf-8")
    locked = dict(re.findall(r"^([\w.-]+)==([\d.]*\d)", lock, re.MULTILINE))
    different = [
        f"{name} {bound}: {locked[name]} is locked"
        for name, bound in lower_bounds()
        if numbers(locked[name])[: len(bound)] != bound
    ]
    assert different == []


def test_an_extra_is_not_required() -> None:
    optional = {
        re.split(r"[>\[;]", each)[0] for name in DELIVERED for each in PROJECT["optional-dependencies"][name]
    }
    assert optional.isdisjoint(re.split(r"[>\[;]", each)[0] for each in PROJECT["dependencies"])


def test_a_token_of_keystone_without_its_extra_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keystoneauth1", None)
    with pytest.raises(ValueError, match=r"keystoneauth1 is not installed: install berth\[keystone\]"):
        Access(auth_type="password", auth={"auth_url": "https://keystone.example/v3"})
