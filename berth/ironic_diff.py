"""`berth ironic diff` and `sweep`: Ironic and placement held side by side, and what is gone taken away."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import msgspec
from rich.console import Console

from berth.commands.terminal import Refusal
from berth.ironic import followed
from berth.settings import Settings
from berth.wiring import transport
from bus import topics
from bus.clock import Clock
from bus.delivery.runner import Bus
from bus.protocol import Transport
from ironic_sync import FollowedIronic, IronicApi
from ironic_sync.api import IronicRefused
from ironic_sync.core.belief import BeliefRules, Moment
from ironic_sync.core.difference import allowance
from ironic_sync.survey import Comparison, Survey, SurveyedNode, diff
from ironic_sync.sweep import Sweep

ALLOW = "berth ironic sweep --allow-removals"


class Sides(NamedTuple):
    """The Ironic that is followed, and the way to placement."""

    ironic: FollowedIronic
    transport: Transport


def sides_of(settings: Settings) -> Sides:
    ironic = followed(settings.having(ironic_amqp_url=""), Clock())
    return Sides(ironic, transport(settings, "ironic diff"))


async def show_diff(sides: Sides, as_json: bool, say: Console) -> int:
    ironic, api = sides.ironic, _api(sides.ironic)
    async with Bus(sides.transport) as bus, api:
        with _in_words():
            compared = await diff(_survey(ironic, api, bus))
    if as_json:
        for one in compared.differences:
            sys.stdout.write(msgspec.json.encode(one).decode() + "\n")
    else:
        for line in described(compared, ironic.share_gone):
            say.print(line, markup=False)
    return 1 if compared.differences else 0


def described(compared: Comparison, share: float) -> list[str]:
    """A line for each difference, and what they come to."""
    lines = [str(one) for one in compared.differences]
    nodes = len({one.node for one in compared.differences})
    differ = f"{nodes} differ" if nodes else "nothing differs"
    lines.append(f"{compared.nodes} nodes in Ironic, {compared.placed} in placement: {differ}")
    gone = sum(one.what == "gone" for one in compared.differences)
    if gone > allowance(compared.placed, share):
        lines.append(
            f"{gone} are gone from Ironic, more at once than is believed: none is removed until it is"
            f" allowed by `{ALLOW}`"
        )
    return lines


async def sweep_gone(sides: Sides, allow_removals: bool, say: Console) -> int:
    ironic, api = sides.ironic, _api(sides.ironic)
    rules = _rules(ironic)
    removed: list[str] = []
    async with Bus(sides.transport) as bus, api:

        async def tell(seen: Sequence[SurveyedNode]) -> None:
            # Of the others the worker must know what placement was told, or it might not tell it again.
            gone = [one for one in seen if one.node is None]
            await bus.publish(*(said for one in gone if (said := one.report(rules)) is not None))
            removed.extend(one.uuid for one in gone)

        sweep = Sweep(
            _survey(ironic, api, bus),
            tell,
            bus.clock,
            pages_per_second=ironic.pages_per_second,
            share=ironic.share_gone,
            allow_removals=allow_removals,
        )
        with _in_words():
            await sweep.everything()
    for uuid in removed:
        say.print(f"{uuid}: gone", markup=False)
    if sweep.held_back:
        raise Refusal(
            f"at least {sweep.held_back} nodes are gone from Ironic, more at once than is believed: none was"
            f" removed; if it is so, say --allow-removals"
        )
    say.print(f"{len(removed)} nodes are gone, and taken out of placement")
    return 0


@contextmanager
def _in_words() -> Iterator[None]:
    try:
        yield
    except IronicRefused as refused:
        raise Refusal(str(refused)) from None


def _api(ironic: FollowedIronic) -> IronicApi:
    if ironic.api is None:
        raise Refusal("this takes Ironic's API: set BERTH_IRONIC_API_URL")
    return ironic.api


def _rules(ironic: FollowedIronic) -> BeliefRules:
    return BeliefRules(place=ironic.selection.place, skip_reserve_in_use=ironic.skip_reserve_in_use)


def _survey(ironic: FollowedIronic, api: IronicApi, bus: Bus) -> Survey:
    clock: Clock = bus.clock
    find = bus.asker(topics.PROVIDERS)
    return Survey(api, find, ironic.selection, _rules(ironic), lambda: Moment(clock.now(), 0))
