"""Operations on maintenance windows and automatic evacuations: choose the hosts of a window; add, change,
find and end windows and evacuations.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import structs

from berth.kit import (
    BadSetting,
    checked,
    every_provider,
    host_named,
    labels_given,
    operations_refused,
    seconds_given,
    time_given,
)
from bus.clock import time_text
from bus.delivery.recording import RecordingBus
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.masking import printable
from bus.resources import FindProviders, Provider
from control_room.kit import duration, several
from features.maintenance.core.window_form import WindowOptions
from features.maintenance.messages import (
    EDIT_MAINTENANCE,
    MAINTENANCE,
    AddWindow,
    CancelWindow,
    ChangeWindow,
    FindMaintenance,
    MaintenanceEdit,
    MaintenanceEditRequested,
    MaintenanceFound,
    MaintenanceWindow,
    WindowPlan,
    every_maintenance,
)


async def hosts_given(bus: Bus, names: Sequence[str], labels: Sequence[str]) -> list[Provider]:
    """Return the hosts with the given names, or the reported hosts that have all the given labels
    (`rack=r1`).
    """
    if bool(names) == bool(labels):
        raise BadSetting("say which: names of hosts, or --label LEVEL=NAME")
    if names:
        found = {host.id: host for host in [await host_named(bus, name) for name in names]}
        return list(found.values())
    wanted = labels_given(labels).items()
    query = FindProviders(parts=("owner", "labels"))
    hosts = [
        provider
        async for provider in every_provider(bus, query)
        if provider.parent is None and provider.agent and wanted <= provider.labels.items()
    ]
    if not hosts:
        raise OperationRefused(f"no host has the label {' '.join(labels)}; `berth host show` shows labels")
    return sorted(hosts, key=lambda host: host.host)


def _fields(options: WindowOptions, now: float, begins: float) -> dict[str, Any]:
    """Return the fields of a MaintenanceWindow that the options set. `now`: for times such as `+2h`;
    `begins`: the begin of the window if the options set none.
    """
    if options.end and options.duration:
        raise BadSetting("say either --until or --for: when the window ends, or how long it lasts")
    begin = time_given("--from", options.begin, now) or None
    ends = time_given("--until", options.end, now) or None
    if options.duration:
        ends = (begin or begins) + seconds_given("--for", options.duration)
    found = {
        "begins": begin,
        "ends": ends,
        "budget": options.budget,
        "level": options.per,
        "moves": options.most,
        "cold": None if options.live is None else not options.live,
        "keep_closed": options.keep_closed,
        "reason": options.reason,
    }
    return {name: value for name, value in found.items() if value is not None}


async def add_window(bus: Bus, options: WindowOptions) -> MaintenanceWindow:
    window = await _window(bus, options)
    await edit_maintenance(bus, AddWindow(window=window))
    return window


async def plan_window(bus: Bus, options: WindowOptions) -> tuple[MaintenanceWindow, WindowPlan]:
    """Return a maintenance window made from the options, and the plan of its drain; store nothing. Raise
    OperationRefused if the window could not be added.
    """
    window = await _window(bus, options)
    return window, await _plan(bus, window)


async def plan_change(
    bus: RecordingBus, begin: str, options: WindowOptions
) -> tuple[MaintenanceWindow, WindowPlan]:
    """Return a changed window and the plan of its drain, like `plan_window`; store nothing."""
    window = await window_given(bus, begin)
    window = structs.replace(window, **_fields(options, bus.clock.now(), window.begins))
    await bus.rehearse(checked(MaintenanceEditRequested(edit=ChangeWindow(window=window))))
    return window, await _plan(bus, window)


async def _plan(bus: Bus, window: MaintenanceWindow) -> WindowPlan:
    plan = (await bus.asker(MAINTENANCE)(checked(FindMaintenance(plan=window)))).planned
    if plan is None:
        raise OperationRefused("the scheduler is of an earlier version, which does not plan windows")
    if plan.refused:
        raise OperationRefused(plan.refused)
    return plan


async def _window(bus: Bus, options: WindowOptions) -> MaintenanceWindow:
    now = bus.clock.now()
    fields = {"begins": now, **_fields(options, now, now)}
    if "ends" not in fields:
        raise BadSetting("say --until or --for: when the hosts are opened again")
    hosts = await hosts_given(bus, options.hosts, options.label)
    return MaintenanceWindow(id=bus.clock.uuid(), roots=tuple(host.id for host in hosts), **fields)


async def change_window(bus: Bus, begin: str, options: WindowOptions) -> MaintenanceWindow:
    """Apply the given options to the only maintenance window that is not over and has an id beginning with
    `begin`; return the changed window.
    """
    window = await window_given(bus, begin)
    window = structs.replace(window, **_fields(options, bus.clock.now(), window.begins))
    await edit_maintenance(bus, ChangeWindow(window=window))
    return window


def window_text(window: MaintenanceWindow) -> str:
    count = several(len(window.roots), "host")
    return f"window {window.id}: {count}, from {time_text(window.begins)} until {time_text(window.ends)}"


async def edit_maintenance(bus: Bus, edit: MaintenanceEdit) -> int:
    """Edit windows or automatic evacuations; return how many windows, hosts or evacuations were changed.
    Raise OperationRefused if the scheduler refuses.
    """
    answer = await bus.asker(EDIT_MAINTENANCE)(checked(MaintenanceEditRequested(edit=edit)))
    if answer.refused:
        raise OperationRefused(answer.refused)
    return answer.changed


async def find_maintenance(bus: Bus, *, ended: bool = False, subject: str = "") -> MaintenanceFound:
    query = checked(FindMaintenance(ended=ended, subject=subject))
    return await every_maintenance(bus.asker(MAINTENANCE), query)


async def window_given(bus: Bus, begin: str) -> MaintenanceWindow:
    """Return the only maintenance window that is not over and has an id beginning with the text `begin`, or
    raise OperationRefused.
    """
    found = [
        each.window for each in (await find_maintenance(bus)).windows if each.window.id.startswith(begin)
    ]
    if len(found) != 1:
        raise OperationRefused(
            f"{len(found)} open windows have an id that begins with {begin!r}; `berth host maintenance list`"
        )
    return found[0]


def reasons_to_leave(found: MaintenanceFound, hosts: Sequence[str]) -> Iterator[str]:
    """Yield a line for each move of an instance by a maintenance window or automatic evacuation, and for each
    open evacuation of its `hosts` (two during a move) that has not moved it. `found`: a scheduler's answer
    about the instance.
    """
    windows = {each.window.id: each for each in found.windows}
    evacuations = {each.id: each for each in found.evacuations}
    moved = {move.plan for move in found.moves}
    for move in found.moves:
        result = printable(move.problem or move.result) or "in progress"
        if (state := windows.get(move.plan)) is not None:
            host = next((host.host for host in state.hosts if host.root == move.root), move.root)
            reason = f" ({printable(state.window.reason)})" if state.window.reason else ""
            why = f"maintenance window {move.plan} of {printable(host)}{reason}"
        elif (dead := evacuations.get(move.plan)) is not None:
            since = time_text(dead.missing_since)
            why = f"{printable(dead.host)} sent no heartbeat since {since} and was fenced: evacuated"
        else:
            continue
        yield f"  move {move.move}: {why}: {result}"
    for dead in evacuations.values():
        if dead.id not in moved and dead.host in hosts and not dead.is_over:
            yield f"  {printable(dead.host)} sends no heartbeats; {dead.state}: {printable(dead.why)}"


async def store_window(bus: Bus, id_: str, options: WindowOptions) -> str:
    """Add a maintenance window if `id_` is "", else change the window with this id; return a sentence about
    the window.
    """
    with operations_refused():
        return window_text(await (change_window(bus, id_, options) if id_ else add_window(bus, options)))


def plan_sentences(window: MaintenanceWindow, plan: WindowPlan, now: float) -> Iterator[tuple[str, bool]]:
    """Yield sentences that say when the hosts of a planned window that are drained first would be empty, each
    with whether it is good.
    """
    count = sum(host.instances for host in plan.hosts if host.phase == "closing")
    if not count:
        yield "the hosts that are drained first have no instances", True
        return
    measured = f"by the durations of {several(plan.measured, 'earlier move')}" if plan.measured else "assumed"
    took = f"about {duration(plan.drain_seconds)} ({measured}) for {several(count, 'move')}"
    begins = f"at {time_text(plan.drain_begins)}" if plan.drain_begins > now else "immediately"
    yield f"the first drain takes {took}, {window.moves} at a time, and begins {begins}", True
    late = plan.empty_at - window.begins
    when = f"{duration(abs(late))} {'after' if late > 0 else 'before'} the window begins"
    yield f"its hosts would be empty about {time_text(plan.empty_at)}, {when}", late <= 0
    if plan.not_evaluated:
        yield f"the instances of {several(plan.not_evaluated, 'host')} were not evaluated", False


async def cancel_window(bus: Bus, id_: str) -> str:
    """Cancel a maintenance window; return a sentence about it."""
    with operations_refused():
        window = await window_given(bus, id_)
        await edit_maintenance(bus, CancelWindow(window=window.id))
    return f"window {window.id} is cancelled"
