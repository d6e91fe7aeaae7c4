"""`berth what-if`: shows if a request would fit now, or how many instances of a mix of flavors would fit."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any

from msgspec import structs

from berth.commands.builds import boot_options, print_notes
from berth.commands.move_output import held_sentence, print_funnel
from berth.commands.options import Commands, option
from berth.commands.terminal import Cli, plain_table, write_json
from berth.operations.boot_options import BootOptions, boot_request, names_of
from berth.operations.host_states import resolved
from berth.operations.publishing import checked
from berth.settings import BadSetting
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.masking import printable
from bus.messages import BuildRequested
from bus.requests import Flavor
from control_room.core.now import Reply
from control_room.core.words import amounts_text, expected_evaluation, expected_start, listed, several
from control_room.queries import known_hosts, query
from features.capacity_plans.core.packing import FlavorCapacity
from features.capacity_plans.core.plan_form import InvalidPlan, parse_plan
from features.capacity_plans.core.planning import PlanAnswer, PlanSide, planned, with_quota, with_reserved
from features.headroom.after_claims import headroom_after
from features.headroom.messages import HEADROOM, FindHeadroom, HeadroomFound
from features.planning.messages import MOVES_MAY_HELP
from features.quotas.messages import QUOTAS, FindQuotas, Quota
from features.reservations.messages import RESERVATIONS, FindReservations, every_reservation
from features.what_if.messages import WHAT_IF, WhatIf, WhatIfAnswered

SECONDS = 30.0  # time limit for an answer to a query


commands = Commands()

_ASKED = boot_options("count", "name")


# Boot options that a capacity plan considers, and boot options that --mix replaces.
_PLANNED = ("zone", "cell", "project")
_IN_MIX = ("vcpus", "memory_mb", "disk_gb", "flavor", "extra_spec", "role")
_PLANNING = ("mix", "add_hosts", "without")

_MIXED = "all of them, mixed"
_PLAN = "Capacity, in thought"


@dataclasses.dataclass(frozen=True)
class WhatIfOptions:
    count: int = option(1, "Instances, all or none; a boot has at most 1000.", min=1, max=10_000)
    best: int = option(8, "So many of the best hosts are named.", min=1, max=64)
    room: bool = option(True, "Count how many more there is room for.", "--room/--no-room")
    preempt: bool = option(False, "If it fits nowhere, show the instances that it would preempt.")
    mix: list[str] | None = option(
        None,
        "A flavor of a mix, N of it in each: 3xVCPU:2,MEMORY_MB:4096,TRAIT,!TRAIT; may be repeated.",
        metavar="[Nx]CLASS:AMOUNT,...",
        panel=_PLAN,
    )
    add_hosts: list[str] | None = option(
        None,
        "So many hosts more: 10xlike:HOST, or 10xCLASS:AMOUNT,...,TRAIT,zone=NAME; may be repeated.",
        metavar="NxSHAPE",
        panel=_PLAN,
    )
    without: list[str] | None = option(
        None, "Leave out this host: name, c1-h*, or id; may be repeated.", metavar="HOST", panel=_PLAN
    )


@commands.command("what-if")
async def what_if_command(cli: Cli, options: Annotated[BootOptions, _ASKED], question: WhatIfOptions) -> int:
    """Show whether a request would fit now, where, how often, and what would help. Nothing is claimed.

    The options are those of `berth boot`: `berth what-if --vcpus 4 --memory-mb 8192 --zone z2 --count 10`.
    With --mix, --add-hosts or --without it shows how many instances of a mix of flavors would fit if hosts
    were added or removed; with --project, at most as many as its quota permits. The roles of a gang are
    counted as a mix.
    """
    if question.mix or question.add_hosts or question.without:
        refuse_unplanned(options, question)
        return await plan_room(cli, boot_request(options), question, options.project)
    options = dataclasses.replace(options, count=min(question.count, 1000))
    request = boot_request(options)
    print_notes(request)
    async with cli.bus("what-if") as bus:
        request = checked(await resolved(bus, request, names_of(options)))
        ask = bus.asker(WHAT_IF, timeout=SECONDS)
        wanted = WhatIf(request=request, best=question.best, room=question.room, count=question.count)
        answer = await ask(structs.replace(wanted, preempt=question.preempt, claims=True))
        headroom = await headroom_reply(bus, answer)
    answer = structs.replace(answer, claims=())
    if cli.as_json:
        after = headroom_after(headroom.answer) if headroom.answer is not None else None
        write_json(structs.asdict(answer) | {"headroom": after})
    else:
        show_answer(answer, cli)
        show_headroom(headroom, cli)
        if answer.decision.code in MOVES_MAY_HELP and not answer.fits:
            cli.line("  `berth make-room --dry-run` with these options shows whether moves would help", "dim")
    return 0 if answer.fits else 1


async def headroom_reply(bus: Bus, answer: WhatIfAnswered) -> Reply[HeadroomFound]:
    """Return placement's answer about the failover headrooms after the claims of a what-if answer."""
    if not answer.claims:
        return Reply("placement", HeadroomFound(headrooms=()))
    return await query("placement", bus.asker(HEADROOM, SECONDS), FindHeadroom(claims=answer.claims))


def refuse_unplanned(options: BootOptions, question: WhatIfOptions) -> None:
    """Raise BadSetting if an option was given that a capacity plan does not consider."""
    considered = {*_PLANNED, *_PLANNING, *(() if question.mix else _IN_MIX)}
    every: tuple[Any, ...] = (options, *options.more, question)
    for given in every:
        for field in dataclasses.fields(given):
            if field.name in {*considered, "more"} or (field.name == "count" and given is options):
                continue
            value = getattr(given, field.name)
            if value != field.default and (value or field.default):
                name = "no-room" if field.name == "room" else field.name.replace("_", "-")
                why = "counts amounts and traits of hosts, and does not consider this option"
                if field.name in _IN_MIX:
                    why = "has the amounts and traits that --mix states"
                raise BadSetting(f"--{name}: a capacity plan (--mix, --add-hosts, --without) {why}")


def planned_flavors(request: BuildRequested) -> list[str]:
    """Return the flavor of a request, or the flavors of a gang's roles, in the syntax of the option --mix."""
    if sections := request.parts.sections:
        return [f"{section.count}x{flavor_as_planned(section.flavor)}" for section in sections]
    return [flavor_as_planned(request.flavor)]


async def plan_room(cli: Cli, request: BuildRequested, question: WhatIfOptions, project: str) -> int:
    flavors = question.mix or planned_flavors(request)
    add, without = question.add_hosts or [], question.without or []
    try:
        plan = parse_plan(flavors, add, without, request.zone, request.cell)
        async with cli.bus("what-if") as bus:
            trees, aggregates = bus.asker(topics.TREES, SECONDS), bus.asker(topics.AGGREGATES, SECONDS)
            hosts = await known_hosts(trees, aggregates, bus.asker(topics.CELLS, SECONDS))
            reserved = await every_reservation(bus.asker(RESERVATIONS, SECONDS), FindReservations())
            quotas: tuple[Quota, ...] = ()
            if project:
                find = checked(FindQuotas(project=project))
                quotas = (await bus.asker(QUOTAS, SECONDS)(find)).quotas
        answer = with_reserved(planned(hosts, plan), reserved)
        for quota in quotas:
            answer = with_quota(answer, plan, quota)
    except InvalidPlan as bad:
        raise BadSetting("; ".join(str(arg) for arg in bad.args)) from None
    if cli.as_json:
        write_json(answer)
    else:
        show_plan(answer, cli)
    return 0 if (answer.then or answer.now).mixes else 1


def flavor_as_planned(flavor: Flavor) -> str:
    """Return a flavor's amounts and traits in the syntax of the option --mix."""
    amounts = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.memory_mb, "DISK_GB": flavor.disk_gb}
    traits = []
    for key, value in flavor.extra_specs.items():
        kind, _, name = key.partition(":")
        if kind == "resources" and value.isdecimal():
            amounts[name] = int(value)
        elif kind == "trait" and value in ("required", "forbidden"):
            traits.append(name if value == "required" else f"!{name}")
        else:
            raise BadSetting(f"--extra-spec {key}: a plan uses amounts and traits; use --mix instead")
    return ",".join([*(f"{name}:{amount}" for name, amount in amounts.items() if amount), *traits])


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


def show_answer(answer: WhatIfAnswered, cli: Cli) -> None:
    if answer.refusal:
        cli.line(f"it cannot be meant: {printable(answer.refusal)}", "red")
        return
    count = sum(placed.instances for placed in answer.placed)
    if answer.fits:
        as_flavor = f", as flavor {answer.flavor} of --or-else" if answer.flavor else ""
        cli.line(f"it fits: {several(count, 'instance')}{as_flavor}", "green")
    else:
        cli.line(f"it does not fit [{answer.decision.code}]", "red")
    if answer.spares:
        cli.line(f"  no preemption: {printable(answer.spares)}", "yellow")
    if answer.backlog is not None:
        place, before = answer.backlog, several(answer.backlog.before, "request")
        cli.line(f"  before it in its project's backlog: {before} (weight {place.weight:g})", "yellow")
        evaluated = expected_evaluation(place.start_p50, place.start_p90, Clock().now())
        cli.line(f"  expected evaluation: {evaluated}")
    if not answer.fits:
        starts = expected_start(answer.start_p50, answer.start_p90, None, Clock().now())
        cli.line(f"  expected start if it waits: {starts}")
    for victim in answer.victims:
        then = "shelved, and placed again later" if victim.requeue else "deleted"
        cli.line(f"  {victim.build} (priority {victim.priority}) would be {then}", "yellow")
    if count > 1 or answer.victims:
        for placed in answer.placed:
            zone = f", zone {printable(placed.zone)}" if placed.zone else ""
            cli.line(f"  {placed.instances:>5} on {printable(placed.host)} (cell {placed.cell}{zone})")
    for held in answer.held:
        cli.line(f"  {held_sentence(held)}", "yellow")
    print_funnel(answer.decision, cli.say, answer.placed[0].root if answer.placed else "")
    if answer.room:
        total, hosts = sum(left.instances for left in answer.room), sum(left.hosts for left in answer.room)
        cli.line(f"  room for {total} more, on {several(hosts, 'host')}", "bold")
        for left in answer.room:
            where = f"cell {left.cell}" + (f", zone {printable(left.zone)}" if left.zone else "")
            cli.line(f"    {where:<30}{left.instances:>9} on {left.hosts}")
        if answer.quota is not None and answer.quota.permits < total:
            cli.line(f"  {answer.quota}", "yellow")
    if answer.cut:
        cli.line(f"  {printable(answer.cut)}", "yellow")


def show_headroom(headroom: Reply[HeadroomFound], cli: Cli) -> None:
    """Print whether each failover headroom would still be kept; nothing if none is set."""
    if headroom.answer is None:
        cli.line(f"  failover headroom afterwards is unknown: placement: {headroom.problem}", "yellow")
        return
    for after in headroom_after(headroom.answer):
        cli.line(f"  {printable(str(after))}", None if after.state == "kept" else "yellow")
