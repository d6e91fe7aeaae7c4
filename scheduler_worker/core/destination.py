"""Reads the host constraints of a request: the wanted host, the ignored hosts, and unknown names."""

from collections.abc import Callable, Iterable, Sequence

from bus.messages import BuildRequested
from scheduler_worker.core.invalid_request import MAX_NOTES, Unreadable, nearest

Named = Callable[[str], Sequence[str]]  # the roots of a host, by its name or its root


def destination(
    request: BuildRequested, named: Named, names: Callable[[], Iterable[str]]
) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Return the only roots allowed (empty: any), the roots excluded, and sentences about unknown names."""
    ignored: dict[str, str] = {}
    notes: list[str] = []
    for host in request.ignore_hosts:
        roots = named(host)
        if not roots and len(notes) < MAX_NOTES:
            notes.append(f"ignore_hosts: there is no host {host!r}{nearest(host, names())}")
        ignored |= dict.fromkeys(roots, host)
    wanted: dict[str, set[str]] = {}
    for field in ("forced_host", "wanted_host"):
        host = getattr(request, field)
        if not host:
            continue
        roots = named(host)
        if not roots:
            raise Unreadable(f"{field}: there is no host {host!r}{nearest(host, names())}")
        if ignored.keys() >= set(roots):
            raise Unreadable(f"{field}: {host!r} is among ignore_hosts")
        wanted[field] = set(roots)
    if len(wanted) == 2 and not wanted["forced_host"] & wanted["wanted_host"]:
        raise Unreadable(
            f"forced_host: {request.forced_host!r}, and wanted_host: {request.wanted_host!r} is another"
        )
    only: set[str] = set.intersection(*wanted.values()) if wanted else set()
    return tuple(sorted(only)), tuple(sorted(ignored)), tuple(notes)
