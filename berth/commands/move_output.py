"""Prints decisions (considered hosts, rejections, best hosts) and moves (progress, results, phases)."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from berth.commands.instances import duration
from berth.commands.terminal import Cli, write_json
from berth.operations.following import REFUSED, VERIFYING, MoveOutcome
from berth.operations.moving import why_not
from bus.decisions import Decision, Record, RecordedHost
from bus.masking import printable
from bus.moves import MoveProgress, MoveRequested, MoveStands
from bus.queries import WaitingRequest, WhatIfAnswered

NAME, NUMBER = 34, 8  # columns
MOST_WEIGHERS = 4  # weighers with a separate column; the others are summed
_BLOCKS = " ▏▎▍▌▋▊▉█"


def funnel(decision: Decision, width: int, chosen: str = "") -> Iterator[Text]:
    """Yield the lines that show a decision; `chosen` is the root of the chosen host, or empty."""
    if decision.considered:
        yield from _narrowing(decision, width)
    if decision.record is not None:
        yield from _best(decision.record, width, chosen)
    for said, what, style in (
        ("placement refused", decision.refused, "red"),
        ("would help", decision.helps, "green"),
        ("of no meaning here", decision.notes, "yellow"),
    ):
        if what:
            yield Text(f"  {said}", style=style)
            yield from (_clipped(f"    {printable(one)}", width) for one in what)
    if decision.nearest:
        yield Text("  came closest", style="bold")
        longest = max(len(miss.host) for miss in decision.nearest)
        for miss in decision.nearest:
            yield _clipped(f"    {printable(miss.host):<{longest}}  {printable(miss.lacks)}", width)


def _narrowing(decision: Decision, width: int) -> Iterator[Text]:
    """Yield a bar of the remaining hosts for each constraint of a decision."""
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
    """Yield the hosts recorded in a decision, best first, with their scores."""
    from scheduler_worker import replay

    again = replay("", record).order
    rest = [host for host in record.hosts if host.refused or host.root in record.turned_down]
    if not record.hosts:
        return
    scales = sorted(record.scales, key=lambda scale: -abs(scale.multiplier))
    weighers = [scale.weigher for scale in scales[:MOST_WEIGHERS]]
    names = {host.root: printable(host.host) for host in record.hosts}
    room = max(10, min(max(map(len, names.values())), width - 8 - 12 * (len(weighers) + 1)))
    title = "".join(f"{_short(name, 11):>12}" for name in ("total", *weighers))
    others = len(scales) - len(weighers)
    yield Text(f"  {'the best':<{room + 4}}{title}{f'  and {others} more' if others else ''}", style="bold")
    told = [host for host in again if host not in rest]
    for host in told:
        yield _row(host, record, weighers, _short(names[host.root], room), room, host.root == chosen)
    for host in rest:
        why = printable(host.refused) or "placement refused it"
        line = Text(f"  ✗ {_short(names[host.root], room):<{room + 2}}", style="dim")
        line.append(f"  {why}", style="dim")
        line.truncate(width, overflow="ellipsis")
        yield line


def _row(
    host: RecordedHost, record: Record, weighers: Sequence[str], name: str, room: int, chosen: bool
) -> Text:
    from scheduler_worker import scores_of

    scores = scores_of(record, host.root)
    points = "".join(f"{scores.get(one, 0.0):>12.4g}" for one in ("total", *weighers))
    said = [f"chosen {host.chosen} times before"] if host.chosen else []
    said += ["in another scheduler's slice"] if host.outside else []
    tail = f"  {', '.join(said)}" if said else ""
    line = Text(f"  {'▸' if chosen else ' '} {name:<{room + 2}}{points}")
    line.stylize("bold green" if chosen else "")
    return line.append(tail, style="dim")


def _clipped(text: str, width: int) -> Text:
    line = Text(text)
    line.truncate(max(width, 40), overflow="ellipsis")
    return line


def _short(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def print_funnel(decision: Decision, say: Console, chosen: str = "") -> None:
    for line in funnel(decision, say.width, chosen):
        line.rstrip()
        say.print(line)


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
    "cancelled": "[yellow]waits no more[/yellow]: it stays as it is",
}
_BEGINS = {  # descriptions of phases
    "prepare": "gets its place on {host}",
    "send": "leaves for {host}",
    "start": "starts on {host}",
    "resume": "goes on, on {host}",
    "build": "is built on {host}",
    "rebuild": "is rebuilt on {host}",
    "swap": "did not come to {host}: its next host is tried",
    "undo": "goes back where it was",
    "revert": "goes back where it was",
    "abort": "goes back where it was",
}


class MovePrinter:
    """Prints the progress of moves: each phase once, and with --json every progress report."""

    def __init__(self, cli: Cli) -> None:
        self.as_json = cli.as_json
        self.say = cli.say
        self._phases: dict[str, tuple[str, str]] = {}
        self._waits: dict[str, str] = {}

    def progress(self, said: MoveProgress) -> None:
        if self.as_json:
            write_json(said)
            return
        if self._phases.get(said.move) == (said.phase, said.host):
            return
        self._phases[said.move] = (said.phase, said.host)
        if said.phase in _BEGINS:
            words = _BEGINS[said.phase].format(host=printable(said.host) or "its host")
            if said.phase == "send" and not said.host:
                words = "is stopped, and its image made"
            self.say.print(f"{said.build} {words}", style="dim", markup=False)

    def waits(self, said: WaitingRequest) -> None:
        """Print that a move waits, once, and again when it lacks something else."""
        lacks = f"place {said.position} in its line: {said.lacks}"
        if self._waits.get(said.request) == lacks:
            return
        self._waits[said.request] = lacks
        if self.as_json:
            write_json(said)
            return
        wakes = f"; would be woken by {said.wakes}" if said.wakes else ""
        build = next(iter(said.builds), said.request)
        self.say.print(f"{build} waits: {printable(lacks)}{printable(wakes)}", style="dim", markup=False)

    def over(self, outcome: MoveOutcome) -> None:
        if self.as_json:
            write_json({name: getattr(outcome, name) for name in outcome.__dataclass_fields__})
        else:
            self.say.print(sentence(outcome))
            for line in failures(outcome):
                self.say.print(line, markup=False)


class RequestedMovesPrinter(MovePrinter):
    """Prints the moves that this command requested, and how to confirm moves that wait for it."""

    def __init__(self, cli: Cli) -> None:
        super().__init__(cli)
        self.count_over = 0

    def over(self, outcome: MoveOutcome) -> None:
        self.count_over += 1
        super().over(outcome)
        if outcome.end == VERIFYING and not self.as_json:
            self.say.print(
                f"  `berth confirm {outcome.build}` keeps it there,"
                f" `berth revert {outcome.build}` brings it back",
                style="dim",
                markup=False,
            )


def sentence(outcome: MoveOutcome) -> str:
    """Return the result of a move as a coloured sentence."""
    ended = f"[green]{_DONE.get(outcome.kind, 'done')}[/green]" if outcome.end == "done" else ""
    words = (ended or _ENDS.get(outcome.end, outcome.end)).format(host=escape(printable(outcome.host)) or "?")
    code = rf" \[{outcome.code}]" if outcome.code else ""
    reason = f": {escape(printable(outcome.reason))}" if outcome.reason else ""
    return f"{outcome.build} {words}{code}{reason}"


def failures(outcome: MoveOutcome) -> list[str]:
    """Return the failed phases and attempts of a move, one in each line."""
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
    """Return moves as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("move", "build", "kind", "is", "from", "to", "since", "took"):
        table.add_column(title, no_wrap=True)
    table.add_column("why", overflow="fold")
    for move in found:
        percent = f" {move.percent}%" if move.percent and not move.ended else ""
        row = (
            move.move,
            move.build,
            move.kind,
            f"{move.phase}{percent}",
            move.source or "-",
            move.host or "-",
            duration(now - move.since),
            duration(move.ended - move.since) if move.ended else "",
            move.reason,
        )
        table.add_row(*(escape(printable(cell)) for cell in row))
    return table


def phases_table(move: MoveStands) -> Table:
    """Return the phases of a move as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("phase", "host", "came to", "took"):
        table.add_column(title, no_wrap=True)
    table.add_column("cause", overflow="fold")
    for phase in move.phases:
        took = f"{max(phase.ended - phase.began, 0.0):.1f}s" if phase.ended else ""
        row = (phase.phase, phase.host, phase.outcome, took, phase.cause)
        table.add_row(*(escape(printable(cell)) for cell in row))
    return table


def tell_supposed(cli: Cli, moves: Sequence[MoveRequested], answers: Sequence[WhatIfAnswered]) -> int:
    """Print what moves would do if they were requested; return 1 unless all would succeed."""
    for request, answer in zip(moves, answers, strict=True):
        if cli.as_json:
            write_json(answer)
            continue
        if answer.fits:
            where = "".join(f" to {printable(there.host)} in cell {there.cell}" for there in answer.placed)
            cli.say.print(f"{request.build}: {request.kind}{where}", style="green", markup=False)
        else:
            cli.say.print(
                f"{request.build}: no {request.kind}: {printable(why_not(answer))}", style="red", markup=False
            )
        print_funnel(answer.decision, cli.say, answer.placed[0].root if answer.placed else "")
    return 0 if all(answer.fits for answer in answers) else 1


def tell_why_they_stay(stay: Sequence[tuple[str, WhatIfAnswered]], say: Console) -> None:
    """Print the instances that cannot move, grouped by reason, with the decision about the first one."""
    alike: dict[tuple[str, object], list[str]] = {}
    first: dict[tuple[str, object], WhatIfAnswered] = {}
    for build, answer in stay:
        why = (printable(why_not(answer)), answer.decision.removals)
        alike.setdefault(why, []).append(build)
        first.setdefault(why, answer)
    for key, builds in alike.items():
        more = f" and {len(builds) - _SHOWN} more" if len(builds) > _SHOWN else ""
        say.print(f"  would stay: {key[0]}", style="red", markup=False)
        say.print(f"    {', '.join(builds[:_SHOWN])}{more}", markup=False)
        print_funnel(first[key].decision, say, first[key].placed[0].root if first[key].placed else "")
