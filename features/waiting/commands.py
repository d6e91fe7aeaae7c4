"""`berth request list` lists the requests that wait for capacity."""

from collections.abc import Sequence

from msgspec import structs
from rich.table import Table

from berth.kit import Commands, ListCli, age_text, option, plain_table
from bus import topics
from bus.clock import Clock
from bus.masking import printable
from bus.queries import FindWaiting, WaitingRequest

commands = Commands()

_WAITING_PAGE = 200


@commands.command("list")
async def waiting_command(
    cli: ListCli,
    project: str = option("", "Only requests of this project."),
    limit: int = option(50, "The number of requests, the first in the queue.", min=1),
) -> None:
    """List the requests that wait for capacity: queue position, what they lack, what starts a new search.

    They are listed by priority, then by age, the oldest first. Requests of one equivalence class share a
    queue. "starts in 4m, 11m" is estimated from the recent pace of that queue: half of such requests start
    within 4 minutes, 90 % within 11 minutes; "late" means after the request's waiting time has ended. `berth
    boot --wait 30m --priority 5` adds a build, `berth delete BUILD` cancels it; `berth instance move BUILD
    --wait 30m` adds a move, `berth move abort BUILD` cancels it.
    """
    waiting: list[WaitingRequest] = []
    async with cli.bus("waiting") as bus:
        question, found = FindWaiting(project=project), None
        while found is None or (found.more is not None and len(waiting) < limit):
            page = min(limit - len(waiting), _WAITING_PAGE)
            found = await bus.asker(topics.WAITING)(structs.replace(question, limit=page))
            question = structs.replace(question, after=found.more)
            waiting += found.waiting
    cli.rows(waiting, _waiting_table(waiting, Clock().now()) if found.count else "no request waits")
    if cli.as_json:
        return
    if len(found.kinds) > 1:
        kinds = [f"{printable(kind.flavor)} ({kind.kind}): {kind.requests}" for kind in found.kinds[:10]]
        cli.line(f"{found.count} wait, by kind: {', '.join(kinds)}")
    if len(waiting) < found.count:
        cli.line(f"... and {found.count - len(waiting)} more: --limit shows them", "dim")
    if found.backlog:
        cli.line(f"{sum(found.backlog.values())} more are in the backlog: `berth project share list`", "dim")
    if found.rescued:
        cli.say.print(f"[red]{found.rescued} waited although a host fitted[/red]: please report this bug")


def _waiting_table(waiting: Sequence[WaitingRequest], now: float) -> Table:
    rows = []
    for request in waiting:
        several = "" if request.instances == 1 else f" and {request.instances - 1} more"
        times = age_text(now - request.since), age_text(request.until - now)
        build = f"{next(iter(request.builds), request.request)}{several}"
        move = request.move or "boot", request.flavor, request.instances
        queue = request.kind, request.position, request.priority
        starts = _starts_in(request, now)
        rows.append((*queue, *move, *times, starts, build, request.lacks, request.wakes))
    titles = (
        "queue",
        "position",
        "priority",
        "asks",
        "flavor",
        "instances",
        "since",
        "for",
        "starts in",
        "build",
    )
    return plain_table((*titles, "lacks", "would wake it"), rows, folded=("lacks", "would wake it"))


def _starts_in(request: WaitingRequest, now: float) -> str:
    """Return the times within which a waiting request starts with a probability of 50 % and 90 %, such as
    `4m, 11m`; "late" for a time after the end of its wait, "unknown" without an estimate.
    """
    if request.start_p50 is None or request.start_p90 is None:
        return "unknown"
    limit = request.until
    times = (age_text(at - now) if at <= limit else "late" for at in (request.start_p50, request.start_p90))
    return ", ".join(dict.fromkeys(times))
