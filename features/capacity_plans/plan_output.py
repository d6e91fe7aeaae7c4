"""Prints how many instances of a mix of flavors would fit."""

from collections.abc import Mapping

from berth.kit import Cli, plain_table
from bus.masking import printable
from control_room.kit import amounts_text, listed, several
from features.capacity_plans.core.packing import FlavorCapacity
from features.capacity_plans.core.planning import PlanAnswer, PlanSide

_MIXED = "all of them, mixed"


def show_plan(answer: PlanAnswer, cli: Cli) -> None:
    now, then = answer.now, answer.then
    last = then or now
    if answer.added:
        cli.line(f"with {several(answer.added, 'host')} more, empty")
    if answer.taken:
        cli.line(printable(f"without {several(len(answer.taken), 'host')}: {listed(answer.taken, 10)}"))
        if answer.homeless:
            held = amounts_text(answer.homeless)
            cli.line(f"  allocations there must move elsewhere, and are not counted: {held}")
    rows = [(_MIXED, now.mixes, then.mixes if then else None, last.lost)]
    rows += [
        (flavor_now.name, flavor_now.fits, then.flavors[at].fits if then else None, last.flavors[at].lost)
        for at, flavor_now in enumerate(now.flavors)
    ]
    if then:
        cli.say.print(plain_table(("flavor", "fit now", "fit then", "lost in pieces"), rows))
    else:
        columns = ((name, fit, lost) for name, fit, _, lost in rows)
        cli.say.print(plain_table(("flavor", "fit now", "lost in pieces"), columns))
    closed = f", {last.closed} closed not counted" if last.closed else ""
    cli.line(f"of {several(last.hosts, 'open host')}{closed}; by amounts and traits, without filters")
    for amounts, whose in ((answer.reserved, "reservations"), (answer.headroom, "failover headroom")):
        if amounts:
            cli.line(f"the undrawn capacity of {whose} counts as used: {amounts_text(amounts)}")
    every: list[tuple[str, PlanSide | FlavorCapacity]] = [(_MIXED, last)]
    every += [(flavor.name, flavor) for flavor in last.flavors]
    for name, limited in every:
        if limited.quota is not None:
            cli.line(f"{name}: {limited.on_hosts:,} fit on the hosts; {limited.quota}", "yellow")
    for flavor in last.flavors:
        for line in _pieces(flavor):
            cli.line(line)


def _pieces(flavor: FlavorCapacity) -> list[str]:
    if not flavor.lost:
        return []
    lines = [f"{flavor.name}: {flavor.in_sum} would fit if all free capacity were on one host"]
    for class_ in flavor.classes:
        left: Mapping[str, int] = {
            "in pieces too small": class_.small,
            "in addition to the limiting resource": class_.in_addition,
        }
        listed = ", ".join(f"{amount} {where}" for where, amount in left.items() if amount)
        if listed:
            free = f"{class_.free} free, the largest piece {class_.largest}"
            lines.append(f"  {class_.resource_class}: {free}; left {listed}")
    return lines
