"""Prints moves: their progress, results, phases and expected destinations."""

from collections.abc import Sequence

from rich.markup import escape
from rich.table import Table

from berth.commands.decision_output import cause_after, print_funnel, wait_sentence
from berth.commands.instances import duration
from berth.commands.terminal import Cli, plain_table, write_json
from bus.masking import printable
from bus.queries import WaitingRequest
from features.moves.messages import MoveProgress, MoveRequested, MoveStands
from features.moves.moving import REFUSED, VERIFYING, MoveListener, MoveOutcome, SupposedMove, why_not

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


def failures(outcome: MoveOutcome) -> list[str]:
    """Return a line for each failed phase of a move or, if no phase failed, for each failed attempt."""
    lines = [
        f"  {phase.phase} on {printable(phase.host)}: {phase.outcome}{cause_after(phase.cause)}"
        for phase in outcome.phases
        if phase.outcome != "done"
    ]
    return lines or [
        f"  {number}. {printable(attempt.host)}: {attempt.outcome}{cause_after(attempt.cause)}"
        for number, attempt in enumerate(outcome.attempts, 1)
        if attempt.outcome != "built"
    ]


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


def print_supposed(cli: Cli, moves: Sequence[MoveRequested], answers: Sequence[SupposedMove]) -> int:
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


def print_not_moved(stay: Sequence[tuple[str, SupposedMove]], cli: Cli) -> None:
    """Print the instances that cannot move, grouped by reason, and for each reason the decision about its
    first instance.
    """
    alike: dict[tuple[str, object], list[tuple[str, SupposedMove]]] = {}
    for build, answer in stay:
        alike.setdefault((printable(why_not(answer)), answer.decision.removals), []).append((build, answer))
    for (why, _), group in alike.items():
        more = f" and {len(group) - _SHOWN} more" if len(group) > _SHOWN else ""
        cli.line(f"  would stay: {why}", "red")
        cli.line(f"    {', '.join(build for build, _ in group[:_SHOWN])}{more}")
        first = group[0][1]
        print_funnel(first.decision, cli.say, first.placed[0].root if first.placed else "")
