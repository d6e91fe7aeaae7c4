"""Prints decisions (considered, rejected and best hosts), attempts of builds, and waiting requests."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from bus.clock import moment_text
from bus.decisions import Decision, Record, RecordedHost, tie_sentence
from bus.masking import printable
from bus.messages import Attempt
from bus.queries import HeldHost, WaitingRequest

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
    from scheduler_worker import replay, scores_of

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
    for scale in scales:
        if scale.decided_by:
            yield _clipped(f"    {scale.weigher}: {printable(scale.decided_by)}", width)
    ranked = [host for host in again if host not in rest]
    totals = {host.root: scores_of(record, host.root).get("total", 0.0) for host in record.hosts}
    if tie := tie_sentence(record, totals, chosen):
        yield _clipped(f"    {printable(tie)}", width)
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
    """Print how many hosts each filter left, and the ranked hosts; `chosen` is marked."""
    for line in funnel(decision, console.width, chosen):
        line.rstrip()
        console.print(line)


def wait_sentence(waiting: WaitingRequest) -> str:
    """Return a sentence about a waiting request: queue position, what it lacks, what causes a new attempt."""
    wakes = f"; would be woken by {waiting.wakes}" if waiting.wakes else ""
    return printable(f"place {waiting.position} in its line: {waiting.lacks}{wakes}")


def held_sentence(held: HeldHost) -> str:
    """Return a sentence that says for which waiting request a host is held, since when and until when."""
    of = f"waiting request {held.request} of project {held.project}"
    until = f"until it gets a host, at most until {moment_text(held.until)}"
    return printable(f"{held.host} is held for {of} since {moment_text(held.since)} {until}")


def attempts_of(attempts: Sequence[Attempt]) -> list[str]:
    """Return a line of text for each attempt of a build, with its number, host and result."""
    return [
        f"  attempt {number}  {printable(attempt.host)}: {attempt.outcome}{cause_after(attempt.cause)}"
        for number, attempt in enumerate(attempts, 1)
    ]


def cause_after(cause: str) -> str:
    """Return a cause as the end of a sentence, after a colon; empty without a cause."""
    return f": {printable(cause)}" if cause else ""
