"""Applies placement's answers and outdated reports to builds.

A build with a reason to fail (`doom`) can only end in error, after its allocations were released.
"""

from collections.abc import Collection
from itertools import zip_longest

from msgspec.structs import replace

from bus import claims
from bus.agent_builds import reshaped_mappings
from bus.messages import AgentReported, Attempt, BuildReshaped, Selection
from bus.vocabulary import Allocations, Contended, cause_of
from cell_conductor.core import build as builds
from cell_conductor.core.build import Build, Effects, Leftover, Stepped
from cell_conductor.core.events import AttemptLimits

Refusals = tuple[claims.Refusal, ...]


def swapped(build: Build, result: claims.ClaimResult | str, now: float, limits: AttemptLimits) -> Stepped:
    """Apply placement's answer to a build's claim of its next host: start the next attempt there if the claim
    succeeded; if not, repeat the claim or end the build.
    """
    left_behind = builds.destroy(build)
    build, at, refused, why = swap_result(build, result, now)
    if refused:
        build = replace(build, attempts=(*build.attempts, *refused))
    if at:
        deadline = now + limits.build_timeout
        build = replace(build, status="building", at=at, attempt=build.attempt + 1, started=now)
        build = replace(build, deadline=deadline)
        return build, (left_behind, builds.order(build))
    if not why:
        return build, (builds.claim_or_release(build),)
    build, effects = fail(build, why)
    return release_answered(build, result) if isinstance(result, claims.Retired) else (build, effects)


def swap_result(
    build: Build, result: claims.ClaimResult | str, now: float
) -> tuple[Build, int, tuple[Attempt, ...], str]:
    """Apply placement's answer to the claim of a build's next host.

    Return the build, the position of the claimed host in its list of hosts (0: none), the refused alternates,
    and the reason why there is no next host (empty: ask placement again).
    """
    match result:
        case claims.Claimed(choice=choice, refused=refused):
            attempts = _refused(build.untried[:choice], refused, now)
            return replace(build, generation=result.generation), build.at + 1 + choice, attempts, ""
        case claims.Held():
            position = position_of(build, result)
            if position is not None:
                build = with_allocations(build, position, result.allocations)
            build = replace(build, generation=result.generation if result.allocations else None)
            if position is not None and position > build.at:  # the claim had succeeded before a crash
                return build, position, _refused(build.untried[: position - build.at - 1], (), now), ""
            if position is not None:  # another client changed the claim, but the build still holds its host
                return build, 0, (), ""
            holds = ", ".join(sorted(result.allocations)) or "nothing"
            return build, 0, (), f"its claim was changed by another client (it holds {holds})"
        case claims.Refused(refusals=refusals):
            return build, 0, _refused(build.untried, refusals, now), "every alternate was refused"
        case claims.Retired(why=why):
            return build, 0, (), f"its claim has ended ({why})"
        case Contended():
            return build, 0, (), ""
        case str() as why:
            return build, 0, (), f"placement refused to judge the claim ({why})"


def _refused(hosts: tuple[Selection, ...], refusals: Refusals, now: float) -> tuple[Attempt, ...]:
    """Return history entries for the alternates that placement refused, each with placement's reason."""
    return tuple(
        builds.attempt_over(host, "refused", str(refusal or "the reason was lost in a restart"), now, now)
        for host, refusal in zip_longest(hosts, refusals[: len(hosts)])
    )


def release_answered(build: Build, result: claims.ReleaseResult) -> Stepped:
    """Apply placement's answer to the release of a build's allocations: report the build's end if they are
    released; if they had changed, request their release again.
    """
    match result:
        case claims.Held():  # request the release again, with the present generation
            build, messages_out = _caught_up(build, result)
            return build, (*messages_out, builds.claim_or_release(build))
        case Contended():
            return build, (builds.claim_or_release(build),)
        # Placement refuses the release: the build ends, and its reason says so.
        case claims.OutsideCell(why=why) if not build.end:
            doom = cause_of(f"{build.doom}; placement does not release its allocations: {why}")
            build = replace(build, doom=doom)
    if build.status == "deleting":
        had_ended = bool(build.end)
        build = replace(build, status="deleted", end=build.end or "error", generation=None)
        end = () if had_ended else (builds.ended(build),)
        return build, (*end, *(builds.deleted(build, reply_to) for reply_to in build.replies))
    build = replace(build, status="error", end="error", generation=None)
    return build, (builds.destroy(build), builds.ended(build))


def _caught_up(build: Build, held: claims.Held) -> Stepped:
    # Placement accepted a claim whose answer was lost. A holder consumer has the resources of the earlier
    # attempt, and the build those of the next host or, on a move's way back, of the source.
    build = replace(build, generation=held.generation if held.allocations else None)
    if (left := _taken_over(build, held)) is not None:
        return replace(
            with_allocations(build, left.at, held.allocations), at=left.at, attempt=left.attempt
        ), ()
    position = position_of(build, held)
    if position is None and held.allocations and builds.leftover_holder(build) is not None:
        # A move has claimed its destination, and its holder consumer has the source, but the order of the
        # move has not arrived. No guest runs at the destination: with a new attempt number, no holder
        # consumer is made at the release.
        return replace(build, attempt=build.attempt + 1), ()
    if position is None or position == build.at:
        return build, ()
    retried = replace(
        with_allocations(build, position, held.allocations), at=position, attempt=build.attempt + 1
    )
    return retried, (builds.destroy(build),)


def _taken_over(build: Build, held: claims.Held) -> Leftover | None:
    waits = (left for left in build.leftovers if not left.is_destroyed and left.attempt != build.attempt)
    return next((left for left in waits if holds_instead(build, build.hosts[left.at], held)), None)


def holds_instead(build: Build, selection: Selection, held: claims.Held) -> bool:
    """Return whether the allocations `held` of a build, as placement answered, are on the host `selection`
    instead of on the build's current host.
    """
    if selection.choice.allocations == held.allocations != build.host.choice.allocations:
        return True
    return selection.root in held.roots and build.host.root not in held.roots


def fail(build: Build, why: str) -> Stepped:
    """Record that a build can only end in error, and return the request to release its allocations."""
    chain = "; ".join(f"{tried.host} {tried.outcome}: {tried.cause}" for tried in build.attempts)
    build = replace(build, doom=cause_of(f"{why}: {chain}"))
    return build, (builds.claim_or_release(build),)


def reshaped(build: Build, reshape: BuildReshaped, former: Collection[int] = ()) -> Build:
    """Record a build's allocations after a reshape of its host; ignore a reshape that is not newer than the
    last recorded one. `former`: positions of hosts that a claim, not answered yet, may have returned to.
    """
    if build.placed is None or build.generation is None or reshape.number <= build.reshaped:
        return build
    positions: tuple[int, ...] = ()
    if reshape.generation > build.generation:  # a claim that is not answered yet
        positions = (*range(build.at + 1, len(build.hosts)), *former)
    elif reshape.generation == build.generation:
        positions = (build.at,)
    for position in positions:
        if build.hosts[position].root == reshape.root:
            return replace(with_allocations(build, position, reshape.allocations), reshaped=reshape.number)
    return build


def to_be_placed(build: Build | None, reshape: BuildReshaped) -> bool:
    """Return whether a reshape is about a claim that this cell has not recorded yet: of an unknown build, or
    a newer claim of a known build on the reshaped host.
    """
    if build is None:
        return True
    later = build.generation is not None and reshape.generation > build.generation
    return later and all(host.root != reshape.root for host in build.hosts)


def position_of(build: Build, held: claims.Held) -> int | None:
    """Return the position in `build.hosts` of the host on which the build has the allocations `held`, as
    placement answered; None if they are on no host of the list.
    """
    if not held.allocations:
        return None
    hosts = build.hosts
    order = (*range(build.at + 1, len(hosts)), build.at)
    same = (at for at in order if hosts[at].choice.allocations == held.allocations)
    positions = (at for at in order if hosts[at].root in held.roots)
    return next(same, next(positions, None))


def with_allocations(build: Build, position: int, allocations: Allocations) -> Build:
    """Return the build with these allocations on the host at this position, as placement reports them."""
    host = build.hosts[position]
    if host.choice.allocations == allocations:
        return build
    mappings = reshaped_mappings(host.mappings, host.choice.allocations, allocations)
    host = replace(host, choice=claims.Choice(allocations=allocations), mappings=mappings)
    hosts = (*build.hosts[:position], host, *build.hosts[position + 1 :])
    end = len(build.as_placed.alternates) + 1
    if position >= end:
        return replace(build, added_hosts=hosts[end:])
    return replace(build, placed=replace(build.as_placed, chosen=hosts[0], alternates=hosts[1:end]))


def is_stale(build: Build, report: AgentReported) -> bool:
    """Return whether an agent's report is about another guest than the build's current one: of another
    attempt, or on another host. After a fail-over that lost commits, an attempt may have been placed twice:
    only the guest on the recorded host is kept.
    """
    if report.attempt != build.attempt:
        return True
    return build.placed is not None and report.root != build.host.root


def stale_report(build: Build, report: AgentReported) -> Effects:
    """Return the messages that answer an agent's report about a guest which is not the build's current guest.

    The messages order the agent to destroy the reported guest, unless it is destroyed already, or an unknown
    attempt is in progress or later than the build's. In the status `building` the build order is sent again,
    too.
    """
    if report.outcome == "destroyed":
        return ()
    left = next((left for left in build.leftovers if left.attempt == report.attempt), None)
    if left is None and (report.attempt > build.attempt or report.outcome == "progress"):
        return ()
    clean = builds.destroy_reported(build, report, above=left.above if left is not None else 0)
    return (clean, builds.order(build)) if build.status == "building" else (clean,)
