"""Prepares the page about shadow mode: how the decisions of Nova's scheduler and of berth's differ."""

from collections.abc import Sequence
from dataclasses import dataclass

from features.nova.with_what_if.messages import HostShare, NovaReportFound, ObservedRequest, Verdict

PERIODS = {"1h": 3600.0, "24h": 86400.0, "7d": 604800.0}
USUAL = "24h"
MOST_HOSTS = 30  # hosts on the page, each with the numbers of instances that both schedulers placed there

_VERDICTS: tuple[tuple[Verdict, str], ...] = (
    ("same", "Same host"),
    ("different", "Different host"),
    ("nova refused", "Nova refused, berth has a host"),
    ("berth refused", "berth refused, Nova has a host"),
    ("both refused", "Both refused"),
    ("undecided", "berth did not decide"),
    ("late", "berth decided too late to compare"),
    ("open", "Result at Nova not known"),
)


@dataclass(frozen=True, slots=True)
class VerdictShown:
    name: str
    requests: int
    share: float  # in percent


@dataclass(frozen=True, slots=True)
class ShareShown:
    """The numbers of instances that Nova and berth placed on a host, with bars in percent of the page's
    largest number.
    """

    share: HostShare
    nova: float  # in percent of the largest number
    berth: float


@dataclass(frozen=True, slots=True)
class ReportShown:
    """The comparison of Nova's and berth's decisions, as the page shows it."""

    found: NovaReportFound
    agreement: float | None  # in percent of the requests for which both schedulers found hosts
    verdicts: tuple[VerdictShown, ...]
    shares: tuple[ShareShown, ...]
    more_hosts: int
    nova_refused: tuple[ObservedRequest, ...]
    berth_refused: tuple[ObservedRequest, ...]
    different: tuple[ObservedRequest, ...]


def report_shown(found: NovaReportFound) -> ReportShown:
    """Return the comparison as the page shows it."""
    counts = {verdict: int(getattr(found, verdict.replace(" ", "_"))) for verdict, _ in _VERDICTS}
    largest = max((max(share.nova, share.berth) for share in found.shares), default=1) or 1
    return ReportShown(
        found=found,
        agreement=agreement(found),
        verdicts=tuple(
            VerdictShown(name, counts[verdict], 100 * counts[verdict] / max(1, found.requests))
            for verdict, name in _VERDICTS
        ),
        shares=tuple(
            ShareShown(share, 100 * share.nova / largest, 100 * share.berth / largest)
            for share in found.shares[:MOST_HOSTS]
        ),
        more_hosts=max(0, len(found.shares) - MOST_HOSTS) + found.more_hosts,
        nova_refused=_of(found.listed, "nova refused"),
        berth_refused=_of(found.listed, "berth refused"),
        different=_of(found.listed, "different"),
    )


def agreement(found: NovaReportFound) -> float | None:
    """Return the percentage of requests for which Nova and berth chose the same hosts, among requests for
    which both found hosts; None without such requests.
    """
    compared = found.same + found.different
    return 100 * found.same / compared if compared else None


def verdict_name(verdict: Verdict) -> str:
    """Return the name of a verdict for users."""
    return dict(_VERDICTS)[verdict]


def _of(listed: Sequence[ObservedRequest], verdict: Verdict) -> tuple[ObservedRequest, ...]:
    return tuple(request for request in listed if request.verdict == verdict)
