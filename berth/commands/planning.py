"""Capacity plans for `berth what-if`: computed as in the control room, printed as text."""

from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from berth import wiring
from berth.commands.terminal import write_json
from berth.settings import BadSetting, Settings
from bus import topics
from bus.delivery.runner import Bus
from bus.masking import printable
from bus.requests import Flavor
from control_room.core.plan import InvalidPlan, parse_plan
from control_room.core.planning import FlavorCapacity, PlanAnswer, planned
from control_room.core.words import listed, several
from control_room.host_reads import known_hosts

SECONDS = 30.0  # an answer may take


async def plan_room(
    settings: Settings,
    mix: Sequence[str],
    add: Sequence[str],
    without: Sequence[str],
    zone: str,
    cell: str,
    as_json: bool,
    say: Console,
) -> int:
    try:
        plan = parse_plan(mix, add, without, zone, cell)
        async with Bus(wiring.transport(settings, "what-if")) as bus:
            hosts = await known_hosts(
                bus.asker(topics.TREES, SECONDS),
                bus.asker(topics.AGGREGATES, SECONDS),
                bus.asker(topics.CELLS, SECONDS),
            )
        answer = planned(hosts, plan)
    except InvalidPlan as bad:
        raise BadSetting("; ".join(str(arg) for arg in bad.args)) from None
    if as_json:
        write_json(answer)
    else:
        show_plan(answer, say)
    return 0 if (answer.then or answer.now).mixes else 1


def flavor_as_planned(flavor: Flavor) -> str:
    """Return the requested flavor in the syntax of --mix, with amounts and traits."""
    amounts = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    words = []
    for key, value in flavor.extra_specs.items():
        kind, _, name = key.partition(":")
        if kind == "resources" and value.isdecimal():
            amounts[name] = int(value)
        elif kind == "trait" and value in ("required", "forbidden"):
            words.append(name if value == "required" else f"!{name}")
        else:
            raise BadSetting(f"--extra-spec {key}: a plan goes by amounts and traits; say --mix instead")
    return ",".join([*(f"{name}:{amount}" for name, amount in amounts.items() if amount), *words])


def show_plan(answer: PlanAnswer, say: Console) -> None:
    now, then = answer.now, answer.then
    last = then or now
    if answer.added:
        say.print(f"with {several(answer.added, 'host')} more, empty")
    if answer.taken:
        gone = f"without {several(len(answer.taken), 'host')}: {listed(answer.taken, 10)}"
        say.print(printable(gone), markup=False)
        if answer.homeless:
            held = ", ".join(f"{amount} {name}" for name, amount in answer.homeless)
            say.print(f"  what is held there has to go elsewhere, and is not counted: {held}", markup=False)
    columns = ["flavor", "fit now", *(["fit then"] if then else []), "lost in pieces"]
    table = Table(*columns, box=None, pad_edge=False)
    rows: list[tuple[str, int, int | None, int]] = [
        ("all of them, mixed", now.mixes, then.mixes if then else None, last.lost)
    ]
    rows += [
        (room.name, room.fits, then.flavors[at].fits if then else None, last.flavors[at].lost)
        for at, room in enumerate(now.flavors)
    ]
    for name, before, after, lost in rows:
        table.add_row(escape(name), str(before), *([] if after is None else [str(after)]), str(lost))
    say.print(table)
    closed = f", {last.closed} closed not counted" if last.closed else ""
    say.print(f"of {several(last.hosts, 'open host')}{closed}; by amounts and traits, whatever rules say")
    for flavor in last.flavors:
        for line in _pieces(flavor):
            say.print(line, markup=False)


def _pieces(flavor: FlavorCapacity) -> list[str]:
    if not flavor.lost:
        return []
    lines = [f"{flavor.name}: {flavor.in_sum} would fit, were all that is free in one piece"]
    for class_ in flavor.classes:
        left: Mapping[str, int] = {"in pieces too small": class_.small, "beside what ran out": class_.beside}
        told = ", ".join(f"{amount} {where}" for where, amount in left.items() if amount)
        if told:
            free = f"{class_.free} free, the largest piece {class_.largest}"
            lines.append(f"  {class_.resource_class}: {free}; left {told}")
    return lines
