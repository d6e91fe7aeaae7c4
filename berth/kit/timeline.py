"""Events of a build or host in the order of time: request, attempts, moves, acts."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import asdict, dataclass

from msgspec import structs

from berth.kit.listing import PlainTable, plain_table
from berth.kit.terminal import Cli
from berth.kit.times import age_text
from bus import topics
from bus.audit_trail import ActRecord, FindActs
from bus.clock import Clock, moment_text
from bus.delivery.runner import Bus
from bus.masking import printable
from bus.queries import BuildStands

SECONDS = 5.0  # time limit for an answer to a query
MOST_CHANGE = 200  # characters of a change that are shown; `berth audit log --json` has all


@dataclass(frozen=True)
class Happening:
    """An event: its time, a text, and the name of the requester ("" if nothing was requested)."""

    at: float  # seconds since 1970
    what: str
    by: str = ""


def of_build(build: BuildStands) -> list[Happening]:
    """Return the request of a build, its wait and its attempts, as far as their times are recorded."""
    placed = build.placed
    found = [
        Happening(placed.requested, f"requested: flavor {placed.spec.flavor.name}"),
        Happening(placed.waited_since, "began to wait for capacity"),
    ]
    for number, attempt in enumerate(build.attempts, 1):
        where = f"attempt {number} on {attempt.host}"
        cause = f": {attempt.cause}" if attempt.cause else ""
        took = f" after {attempt.ended - attempt.started:.1f} s" if attempt.started and attempt.ended else ""
        found.append(Happening(attempt.started, f"{where} was ordered"))
        found.append(Happening(attempt.ended, f"{where} {attempt.outcome}{took}{cause}"))
    return [each for each in found if each.at]


async def acts_found(bus: Bus, question: FindActs, timeout: float = SECONDS) -> AsyncIterator[ActRecord]:
    """Yield all records of the audit trail that match, the latest first. `timeout`: for each page."""
    ask, more = bus.asker(topics.FIND_ACTS, timeout=timeout), True
    while more:
        page = await ask(question)
        for record in page.records:
            yield record
        question, more = structs.replace(question, before=page.last), bool(page.last)


def of_acts(acts: Iterable[ActRecord]) -> list[Happening]:
    """Return the acts of operators, clients and services on a build or host."""
    found = []
    for act in acts:
        detail = act.detail or (f"now {act.after[:MOST_CHANGE]}" if act.after else "")
        by = f"{act.operator.name} ({act.through or act.interface})"
        found.append(Happening(act.at, f"{act.act}: {act.outcome}{f', {detail}' if detail else ''}", by))
    return found


def in_order(happenings: Iterable[Happening]) -> list[Happening]:
    """Return happenings, the first first; those of the same time stay in their sequence."""
    return sorted(happenings, key=lambda each: each.at)


def show_timeline(happenings: Sequence[Happening], cli: Cli, otherwise: str) -> None:
    """Print happenings, the first first; `otherwise` if there are none."""
    found = in_order(happenings)
    cli.rows(map(asdict, found), timeline_table(found, Clock().now()) if found else otherwise)


def timeline_table(happenings: Sequence[Happening], now: float) -> PlainTable:
    """Return a table of happenings: time, how long before `now` it was, what happened, who requested it."""
    rows = []
    for each in happenings:
        ago = f"{age_text(now - each.at)} ago"
        rows.append((moment_text(each.at), ago, printable(each.what), printable(each.by) or "-"))
    return plain_table(("time", "ago", "what happened", "requested by"), rows, folded=("what happened",))
