"""`berth resource history` and `forecast`: capacity over time, and when it will be used up."""

from dataclasses import asdict, dataclass

from berth.kit import BadSetting, Cli, Commands, option, plain_table, seconds_since
from bus.clock import Clock, time_text
from bus.errors import OperationRefused
from features.capacity_history.history import CapacityHistory, capacity_samples, histories, in_words, thinned
from features.capacity_history.messages import CAPACITY, FindCapacity

commands = Commands()

SECONDS = 30.0  # time limit for an answer to a query


@dataclass(frozen=True)
class HistoryOptions:
    resource_class: str = option("", "Only this resource class.", "--class", metavar="CLASS")
    flavor: str = option("", "Only this flavor, or `all`, instead of resource classes.", metavar="NAME")
    zone: str = option("", "Only this availability zone; without it the sum of all zones.")
    since: str = option("30d", "Samples of this time: 12h, 7d, 365d.")


async def _read(cli: Cli, options: HistoryOptions) -> list[CapacityHistory]:
    """Return the histories that the options select; raise OperationRefused if no sample is recorded."""
    if options.flavor and options.resource_class:
        raise BadSetting("--class and --flavor: use one of them")
    query = FindCapacity(
        since=max(Clock().now() - seconds_since(options.since), 0.0),
        kind="flavor" if options.flavor else "class",
        name=options.resource_class or ("" if options.flavor == "all" else options.flavor),
        zone=options.zone or None,
    )
    async with cli.bus("capacity") as bus:
        found = histories(await capacity_samples(bus.asker(CAPACITY, timeout=SECONDS), query))
    if not found:
        raise OperationRefused(
            f"there is no sample of {query.name or 'the capacity'} in the last {options.since}: schedulers"
            " take one every five minutes, of the usual resource classes and of flavors that were requested"
        )
    return found


@commands.command("history")
async def history(
    cli: Cli,
    options: HistoryOptions,
    rows: int = option(12, "At most so many rows of each class or flavor; --json prints all.", min=2),
    forecast: bool = option(False, "When each class will be used up: date, earliest and latest date."),
) -> None:
    """Show the capacity of each resource class over time: used, free, stranded and waiting.

    Stranded amounts are free, but no requested flavor fits on their hosts, because another resource has run
    out, or the host is disabled. With --flavor: how many instances fitted, and how many waited.

    With --forecast: when each class will be used up by its trend, or no instance of a flavor fits any more.
    The amount that can be used is the capacity without stranded amounts. A date is given only if all slopes
    in the trend's 90 % interval rise, and for at most three times the observed time.
    """
    if forecast:
        await _forecast(cli, options)
        return
    for each in await _read(cli, options):
        if cli.as_json:
            for point in each.points:
                cli.value({"name": each.name, **asdict(point)}, "")
            continue
        cli.line(each.name, "bold")
        points = thinned(each.points, rows)
        if each.kind == "flavor":
            lines = [(time_text(p.at), f"{p.free:,.0f}", f"{p.waiting:,.0f}") for p in points]
            cli.say.print(plain_table(("time (UTC)", "fit", "waiting"), lines))
            continue
        titles = ("time (UTC)", "capacity", "used", "free", "stranded", "waiting")
        amounts = [(p.at, p.capacity, p.used, p.free, p.stranded, p.waiting) for p in points]
        cli.say.print(
            plain_table(titles, [(time_text(at), *(f"{n:,.0f}" for n in rest)) for at, *rest in amounts])
        )


async def _forecast(cli: Cli, options: HistoryOptions) -> None:
    """Print when each resource class will be used up: date, and earliest and latest date."""
    found = await _read(cli, options)
    if cli.as_json:
        for each in found:
            cli.value({"name": each.name, **asdict(each.forecast)}, "")
        return
    rows = []
    for each in found:
        last = each.last
        free = last.free if each.kind == "flavor" else last.free - last.stranded
        rows.append((each.name, f"{last.used:,.0f}", f"{free:,.0f}", in_words(each.forecast, time_text)))
    if found[0].kind == "flavor":
        cli.say.print(
            plain_table(("flavor", "fit", "forecast"), [(name, fit, text) for name, _, fit, text in rows])
        )
    else:
        cli.say.print(plain_table(("class", "used", "still usable", "forecast"), rows))
