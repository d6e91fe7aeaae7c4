"""The options of `berth request what-if` for how many instances of a mix of flavors would fit."""

import dataclasses
from typing import Any

from berth.kit import BadSetting, BootOptions, Cli, boot_request, option, write_json
from bus import topics
from bus.messages import BuildRequested
from bus.requests import Flavor
from control_room.kit import known_hosts
from features.capacity_plans.core.plan_form import InvalidPlan, parse_plan
from features.capacity_plans.core.planning import planned
from features.capacity_plans.plan_additions import completed
from features.capacity_plans.plan_output import show_plan
from features.what_if.parts import WhatIfPart

SECONDS = 30.0  # time limit for an answer to a query

# Boot options that a capacity plan considers, and boot options that --mix replaces.
_PLANNED = ("zone", "cell", "project")
_IN_MIX = ("vcpus", "memory_mb", "disk_gb", "flavor", "extra_spec", "role")
_PLAN = "Capacity, in thought"


@dataclasses.dataclass(frozen=True)
class PlanOptions:
    """Options that ask how many instances of a mix of flavors would fit if hosts were added or removed."""

    mix: list[str] | None = option(
        None,
        "Count how many instances of a mix of flavors would fit, with --project at most as many as its quota"
        " permits: a flavor of the mix, N of it in each: 3xVCPU:2,MEMORY_MB:4096,TRAIT,!TRAIT; may be"
        " repeated. Without --mix, the flavor or the roles of the request are the mix.",
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

    async def answer(self, cli: Cli, options: BootOptions, question: Any) -> int | None:
        """Show the capacity plan, and return the exit code; return None if none of the options is given.
        `options`, `question`: the other options of the command.
        """
        if not (self.mix or self.add_hosts or self.without):
            return None
        self._refuse_unplanned(options, question)
        request, project = boot_request(options), options.project
        try:
            plan = parse_plan(
                self.mix or planned_flavors(request),
                self.add_hosts or [],
                self.without or [],
                request.zone,
                request.cell,
            )
            async with cli.bus("what-if") as bus:
                trees, aggregates = bus.asker(topics.TREES, SECONDS), bus.asker(topics.AGGREGATES, SECONDS)
                hosts = await known_hosts(trees, aggregates, bus.asker(topics.CELLS, SECONDS))
                answer = planned(hosts, plan)
                answer = await completed(lambda query: bus.asker(query, SECONDS), answer, plan, project)
        except InvalidPlan as bad:
            raise BadSetting("; ".join(str(arg) for arg in bad.args)) from None
        if cli.as_json:
            write_json(answer)
        else:
            show_plan(answer, cli)
        return 0 if (answer.then or answer.now).mixes else 1

    def _refuse_unplanned(self, options: BootOptions, question: Any) -> None:
        """Raise BadSetting if an option was given that a capacity plan does not consider."""
        considered = {*_PLANNED, *(() if self.mix else _IN_MIX)}
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


PART = WhatIfPart(options=PlanOptions)


def planned_flavors(request: BuildRequested) -> list[str]:
    """Return the flavor of a request, or the flavors of a gang's roles, in the syntax of the option --mix."""
    if sections := request.parts.sections:
        return [f"{section.count}x{flavor_as_planned(section.flavor)}" for section in sections]
    return [flavor_as_planned(request.flavor)]


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
