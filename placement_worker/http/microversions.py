"""Microversions: which one a request asks for. Inside, a version is its minor number; the major is 1."""

import re

from placement_worker.http import errors

NAME = "openstack-api-version"
SERVICE = "placement"
LATEST_MINOR = 39
FIRST, LATEST = "1.0", f"1.{LATEST_MINOR}"

_FORM = re.compile(r"(\d{1,4})\.(\d{1,4})", re.ASCII)


def text(minor: int) -> str:
    return f"{SERVICE} 1.{minor}"


def negotiated(header: str) -> int:
    """Return the minor version that this header requests. The header can name several services; the last
    entry for placement counts.
    """
    asked = ""
    for part in header.split(","):
        service, _, version = part.strip().partition(" ")
        if service.lower() == SERVICE:
            asked = version.strip()
    if not asked:
        return 0
    if asked == "latest":
        return LATEST_MINOR
    form = _FORM.fullmatch(asked)
    if form is None:
        raise errors.bad_request(f"Invalid microversion: invalid version string: {asked}")
    major, minor = int(form[1]), int(form[2])
    if major != 1 or minor > LATEST_MINOR:
        raise errors.Problem(
            406,
            f"Invalid microversion: Unacceptable version header: {asked}",
            more={"max_version": LATEST, "min_version": FIRST},
        )
    return minor
