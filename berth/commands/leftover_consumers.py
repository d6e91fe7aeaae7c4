"""Lists allocations on hosts that were emptied, by kind of consumer."""

from collections.abc import Collection, Sequence

from berth.commands.move_output import MovePrinter
from berth.commands.terminal import printable, write_json
from bus import topics
from bus.delivery.runner import Bus
from bus.resources import Consumer, FindAllocations, FindProviders, Provider

_SHOWN = 20


async def tell_left_over(
    bus: Bus, hosts: Sequence[Provider], told: Collection[str], telling: MovePrinter
) -> None:
    """Print the remaining consumers, except those already listed."""
    for host in hosts:
        tree = (await bus.asker(topics.PROVIDERS)(FindProviders(in_tree=host.id, parts=()))).providers
        question = FindAllocations(providers=tuple(provider.id for provider in tree))
        holders = (await bus.asker(topics.ALLOCATIONS)(question)).consumers
        left = [holder for holder in holders if holder.id not in told]
        called = host.host or host.name
        if telling.as_json:
            for consumer in left:
                write_json(
                    {"host": called, "consumer": consumer.id, "type": consumer.type, "is": _is(consumer)}
                )
            continue
        for consumer in left[:_SHOWN]:
            telling.say.print(
                f"  {printable(called)}: {consumer.id} {_is(consumer)}", style="dim", markup=False
            )
        if len(left) > _SHOWN:
            telling.say.print(f"  {printable(called)}: ... and {len(left) - _SHOWN} more", style="dim")


def _is(holder: Consumer) -> str:
    match holder.type:
        case "CLEANUP":
            return "keeps the room of a guest until its agent has said that it is destroyed"
        case "MIGRATION":
            return "keeps the place of an instance that has moved, until that is over"
        case "INSTANCE":
            return "holds resources there, and is no instance that its cell would move"
        case _:
            return f"holds resources there, and is none of berth's ({holder.type or 'unknown'})"
