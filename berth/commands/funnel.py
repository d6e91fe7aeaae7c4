"""Draws a decision for the terminal: considered hosts, rejections by constraint, and the best hosts."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from bus.decisions import Decision, Record, RecordedHost
from bus.masking import printable

NAME, NUMBER = 34, 8  # columns
MOST_WEIGHERS = 4  # weighers with a separate column; the others are summed
_BLOCKS = " ▏▎▍▌▋▊▉█"


def funnel(decision: Decision, width: int, chosen: str = "") -> Iterator[Text]:
    """Yield the lines; `chosen` is the root of the chosen host, or empty."""
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
    """Yield a bar of the remaining hosts for each constraint."""
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
    """Yield the recorded hosts, best first, with their weights."""
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
