"""Prints decisions (considered, rejected and best hosts) and moves (progress, results, phases)."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from berth.commands.instances import duration
from berth.commands.terminal import Cli, plain_table, write_json
from berth.operations.following import REFUSED, VERIFYING, MoveListener, MoveOutcome
from berth.operations.moving import why_not
from bus.clock import moment_text
from bus.decisions import Decision, Record, RecordedHost
from bus.masking import printable
from bus.messages import Attempt
from bus.queries import HeldHost, WaitingRequest
from features.moves.messages import MoveProgress, MoveRequested, MoveStands
from features.what_if.messages import WhatIfAnswered

NAME, NUMBER = 34, 8  # widths of columns
MOST_WEIGHERS = 4  # weighers with a separate column; further weighers count only in the total
_BLOCKS = " ▏▎▍▌▋▊▉█"


def funnel(decision: Decision, width: int, chosen: str = "") -> Iterator[Text]:
    """Yield the lines that describe a scheduler's decision; `chosen`: the root of the host to highlight."""
    if decision.considered:
        yield from _narrowing(decision, width)
    if decision.record is not None:
        yield from _best(decision.record, width, chosen)
    for heading, items, style in (
        ("placement refused", decision.refused, "red"),
        ("would help", decision.helps, "green"),
        ("of no meaning here", decision.notes, "yellow"),
    ):
        if items:
            yield Text(f"  {heading}", style=style)
            yield from (_clipped(f"    {printable(item)}", width) for item in items)
    if decision.nearest:
        yield Text("  came closest", style="bold")
        longest = max(len(miss.host) for miss in decision.nearest)
        for miss in decision.nearest:
            yield _clipped(f"    {printable(miss.host):<{longest}}  {printable(miss.lacks)}", width)


def _narrowing(decision: Decision, width: int) -> Iterator[Text]:
    """Yield a line for each filter and requested resource: how many hosts remain, as number and bar."""
    most, bar = decision.considered, max(8, min(40, width - NAME - 2 * NUMBER - 26))
    yield _bar("considered", most, most, bar, "")
    for removal in decision.removals:
        named = ", ".join(printable(host) for host in removal.hosts)
        if removal.removed > len(removal.hosts) > 0:
            named += ", …"
        line = _bar(printable(removal.constraint), removal.left, most, bar, f"−{removal.removed}")
        line.append(f"  {named}", style="dim")
        line.truncate(width, overflow="ellipsis")
        yield line


def _bar(name: str, left: int, most: int, width: int, removed: str) -> Text:
    eighths = round(left / most * width * 8) or (1 if left else 0)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_BLOCKS[rest] if rest else "")
    line = Text(f"  {_short(name, NAME):<{NAME}}{left:>{NUMBER}} ")
    line.append(f"{drawn:<{width}}", style="cyan" if left else "red")
    return line.append(f"{removed:>{NUMBER}}", style="red")


def _best(record: Record, width: int, chosen: str) -> Iterator[Text]:
    """Yield a line for each recorded host, the best first, with its weights or why it was refused."""
    from scheduler_worker import replay

    again = replay("", record).order
    rest = [host for host in record.hosts if host.refused or host.root in record.turned_down]
    if not record.hosts:
        return
    scales = sorted(record.scales, key=lambda scale: -abs(scale.multiplier))
    weighers = [scale.weigher for scale in scales[:MOST_WEIGHERS]]
    names = {host.root: printable(host.host) for host in record.hosts}
    name_width = max(10, min(max(map(len, names.values())), width - 8 - 12 * (len(weighers) + 1)))
    title = "".join(f"{_short(name, 11):>12}" for name in ("total", *weighers))
    further = len(scales) - len(weighers)
    yield Text(
        f"  {'the best':<{name_width + 4}}{title}{f'  and {further} more' if further else ''}", style="bold"
    )
    ranked = [host for host in again if host not in rest]
    for host in ranked:
        yield _row(
            host, record, weighers, _short(names[host.root], name_width), name_width, host.root == chosen
        )
    for host in rest:
        why = printable(host.refused) or "placement refused it"
        line = Text(f"  ✗ {_short(names[host.root], name_width):<{name_width + 2}}", style="dim")
        line.append(f"  {why}", style="dim")
        line.truncate(width, overflow="ellipsis")
        yield line


def _row(
    host: RecordedHost, record: Record, weighers: Sequence[str], name: str, name_width: int, chosen: bool
) -> Text:
    from scheduler_worker import scores_of

    scores = scores_of(record, host.root)
    points = "".join(f"{scores.get(weigher, 0.0):>12.4g}" for weigher in ("total", *weighers))
    notes = [f"chosen {host.chosen} times before"] if host.chosen else []
    notes += ["in another scheduler's slice"] if host.outside else []
    tail = f"  {', '.join(notes)}" if notes else ""
    line = Text(f"  {'▸' if chosen else ' '} {name:<{name_width + 2}}{points}")
    line.stylize("bold green" if chosen else "")
    return line.append(tail, style="dim")


def _clipped(text: str, width: int) -> Text:
    line = Text(text)
    line.truncate(max(width, 40), overflow="ellipsis")
    return line


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def print_funnel(decision: Decision, console: Console, chosen: str = "") -> None:
    for line in funnel(decision, console.width, chosen):
        line.rstrip()
        console.print(line)


_SHOWN = 20  # instances shown per reason
_DONE = {
    "migrate": "moved to {host}",
    "live": "moved to {host}",
    "evacuate": "moved to {host}",
    "resize": "resized, on {host}",
    "shelve": "shelved",
    "unshelve": "unshelved on {host}",
    "rebuild": "rebuilt on {host}",
}
_ENDS = {
    "reverted": "[yellow]went back[/yellow] to {host}",
    "aborted": "[yellow]aborted[/yellow]: it is on {host}",
    "error": "[red]not done[/red]: it is on {host}",
    "deleted": "[yellow]deleted[/yellow] meanwhile",
    VERIFYING: "[yellow]waits to be confirmed[/yellow], on {host}",
    REFUSED: "[red]refused[/red]",
    "cancelled": "[yellow]does not wait any more[/yellow]: it stays as it is",
}
_BEGINS = {  # descriptions of phases
    "prepare": "gets its place on {host}",
    "send": "leaves for {host}",
    "start": "starts on {host}",
    "resume": "goes on, on {host}",
    "build": "is built on {host}",
    "rebuild": "is rebuilt on {host}",
    "swap": "did not come to {host}: its next host is tried",
    "undo": "returns to its former host",
    "revert": "returns to its former host",
    "abort": "returns to its former host",
}


def wait_sentence(waiting: WaitingRequest) -> str:
    """Return a sentence about a waiting request: queue position, what it lacks, what causes a new attempt."""
    wakes = f"; would be woken by {waiting.wakes}" if waiting.wakes else ""
    return printable(f"place {waiting.position} in its line: {waiting.lacks}{wakes}")


def held_sentence(held: HeldHost) -> str:
    """Return a sentence that says for which waiting request a host is held, since when and until when."""
    of = f"waiting request {held.request} of project {held.project}"
    until = f"until it gets a host, at most until {moment_text(held.until)}"
    return printable(f"{held.host} is held for {of} since {moment_text(held.since)} {until}")


class MovePrinter(MoveListener):
    """Prints the progress of moves: each phase once; with --json every progress message."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli
        self._phases: dict[str, tuple[str, str]] = {}
        self._waits: dict[str, str] = {}

    def progress(self, progress: MoveProgress) -> None:
        if self.cli.as_json:
            write_json(progress)
            return
        if self._phases.get(progress.move) == (progress.phase, progress.host):
            return
        self._phases[progress.move] = (progress.phase, progress.host)
        if progress.phase in _BEGINS:
            text = _BEGINS[progress.phase].format(host=printable(progress.host) or "its host")
            if progress.phase == "send" and not progress.host:
                text = "is stopped, and its image made"
            self.cli.line(f"{progress.build} {text}", "dim")

    def waits(self, waiting: WaitingRequest) -> None:
        """Print that a move waits for capacity, and print it again when the lacking resources change."""
        lacks = wait_sentence(waiting)
        if self._waits.get(waiting.request) != lacks:
            self._waits[waiting.request] = lacks
            self.cli.value(waiting, f"{next(iter(waiting.builds), waiting.request)} waits: {lacks}", "dim")

    def on_outcome(self, outcome: MoveOutcome) -> None:
        if self.cli.as_json:
            write_json(vars(outcome))
            return
        self.cli.say.print(sentence(outcome))
        for line in failures(outcome):
            self.cli.line(line)


class RequestedMovesPrinter(MovePrinter):
    """Prints the moves that a command requested, and how to confirm moves that wait for confirmation."""

    count_over = 0

    def on_outcome(self, outcome: MoveOutcome) -> None:
        self.count_over += 1
        super().on_outcome(outcome)
        if outcome.end == VERIFYING and not self.cli.as_json:
            build = outcome.build
            self.cli.line(
                f"  `berth confirm {build}` keeps it there, `berth revert {build}` brings it back", "dim"
            )


def sentence(outcome: MoveOutcome) -> str:
    """Return the result of a move as a sentence, coloured for a terminal."""
    ended = f"[green]{_DONE.get(outcome.kind, 'done')}[/green]" if outcome.end == "done" else ""
    text = (ended or _ENDS.get(outcome.end, outcome.end)).format(host=escape(printable(outcome.host)) or "?")
    code = rf" \[{outcome.code}]" if outcome.code else ""
    reason = f": {escape(printable(outcome.reason))}" if outcome.reason else ""
    return f"{outcome.build} {text}{code}{reason}"


def attempts_of(attempts: Sequence[Attempt]) -> list[str]:
    """Return a line of text for each attempt of a build or move, with its number, host and result."""
    return [
        f"  attempt {number}  {printable(attempt.host)}: {attempt.outcome}{_cause(attempt.cause)}"
        for number, attempt in enumerate(attempts, 1)
    ]


def failures(outcome: MoveOutcome) -> list[str]:
    """Return a line for each failed phase of a move or, if no phase failed, for each failed attempt."""
    lines = [
        f"  {phase.phase} on {printable(phase.host)}: {phase.outcome}{_cause(phase.cause)}"
        for phase in outcome.phases
        if phase.outcome != "done"
    ]
    return lines or [
        f"  {number}. {printable(attempt.host)}: {attempt.outcome}{_cause(attempt.cause)}"
        for number, attempt in enumerate(outcome.attempts, 1)
        if attempt.outcome != "built"
    ]


def _cause(cause: str) -> str:
    return f": {printable(cause)}" if cause else ""


def moves_table(found: Sequence[MoveStands], now: float) -> Table:
    titles = ("move", "build", "kind", "is", "from", "to", "since", "took", "why")
    rows = []
    for move in found:
        percent = f" {move.percent}%" if move.percent and not move.ended else ""
        took = duration(move.ended - move.since) if move.ended else ""
        way = move.source or "-", move.host or "-"
        since = duration(now - move.since)
        rows.append(
            (move.move, move.build, move.kind, f"{move.phase}{percent}", *way, since, took, move.reason)
        )
    return plain_table(titles, rows, folded=("why",))


def phases_table(move: MoveStands) -> Table:
    rows = []
    for phase in move.phases:
        took = f"{max(phase.ended - phase.began, 0.0):.1f}s" if phase.ended else ""
        rows.append((phase.phase, phase.host, phase.outcome, took, phase.cause))
    return plain_table(("phase", "host", "came to", "took", "cause"), rows, folded=("cause",))


def print_what_if(cli: Cli, moves: Sequence[MoveRequested], answers: Sequence[WhatIfAnswered]) -> int:
    """Print where each move would go, or why it is impossible; return 1 if one is impossible, else 0."""
    for request, answer in zip(moves, answers, strict=True):
        if answer.fits:
            where = "".join(f" to {printable(placed.host)} in cell {placed.cell}" for placed in answer.placed)
            cli.value(answer, f"{request.build}: {request.kind}{where}", "green")
        else:
            cli.value(answer, f"{request.build}: no {request.kind}: {printable(why_not(answer))}", "red")
        if not cli.as_json:
            print_funnel(answer.decision, cli.say, answer.placed[0].root if answer.placed else "")
    return 0 if all(answer.fits for answer in answers) else 1


def print_not_moved(stay: Sequence[tuple[str, WhatIfAnswered]], cli: Cli) -> None:
    """Print the instances that cannot move, grouped by reason, and for each reason the decision about its
    first instance.
    """
    alike: dict[tuple[str, object], list[tuple[str, WhatIfAnswered]]] = {}
    for build, answer in stay:
        alike.setdefault((printable(why_not(answer)), answer.decision.removals), []).append((build, answer))
    for (why, _), group in alike.items():
        more = f" and {len(group) - _SHOWN} more" if len(group) > _SHOWN else ""
        cli.line(f"  would stay: {why}", "red")
        cli.line(f"    {', '.join(build for build, _ in group[:_SHOWN])}{more}")
        first = group[0][1]
        print_funnel(first.decision, cli.say, first.placed[0].root if first.placed else "")
