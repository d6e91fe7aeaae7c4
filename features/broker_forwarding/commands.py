"""`berth broker`: forwards messages from one RabbitMQ to another while a berth moves between them."""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated

from msgspec import Struct

from berth.commands.options import Commands, described, option, positional, url_or_file
from berth.commands.terminal import Cli
from berth.services import stop_on_signals
from bus.broker_urls import place
from bus.clock import monotonic
from bus.masking import printable
from bus.rabbit.topology import BrokerNames
from features.broker_forwarding.forwarding import Forwarder
from features.broker_forwarding.queues import check_urls, chosen_queues, stop_when_empty, write_importable

_REPORT_SECONDS = 5.0

commands = Commands(name="broker", no_args_is_help=True)

From = Annotated[
    str, described("The broker to take messages from: URL, or a file with it.", "--from", metavar="URL")
]
To = Annotated[
    str, described("The broker to publish them to: URL, or a file with it.", "--to", metavar="URL")
]


@dataclass(frozen=True)
class QueueChoice:
    definitions: str = option(
        "", "What `rabbitmqctl export_definitions FILE` wrote on the old broker.", metavar="FILE"
    )
    queues: list[str] | None = option(None, "Only this queue; may be repeated.", "--queue", metavar="NAME")
    excluding: list[str] | None = option(
        None, "Leave out this queue; may be repeated.", "--except", metavar="NAME"
    )


class Forwarded(Struct, frozen=True):
    """The result of `berth broker forward`, as printed by `--json`."""

    forwarded: int
    queues: int
    seconds: float


@commands.command("definitions")
def definitions_command(
    cli: Cli,
    exported: Annotated[
        str, positional("What `rabbitmqctl export_definitions` wrote on the old broker.", metavar="OLD")
    ],
    written: Annotated[str, positional("The file to write, for the new broker.", metavar="NEW")],
) -> None:
    """Prepare the exported definitions of a running broker for `rabbitmqctl import_definitions` on another.

    RabbitMQ exports the bindings of private queues, such as a scheduler's, without these queues, and then
    refuses to import the file. The file NEW lacks these bindings and the name of the old cluster; it has all
    users, permissions, policies, exchanges and durable queues. Example: `berth broker definitions old.json
    new.json`.
    """
    left_out = write_importable(exported, written)
    cli.tell(f"{written} is written, without {left_out} bindings of private queues", left_out=left_out)


@commands.command("forward")
async def forward_command(
    cli: Cli,
    old: From,
    new: To,
    choice: QueueChoice,
    until_empty: float | None = option(
        None, "End when all queues were empty for so long (default: at Ctrl-C).", metavar="SECONDS", min=0.0
    ),
) -> None:
    """Forward all messages of the old broker's durable queues to the same queues of the new broker.

    Example: `berth broker forward --from old.url --to new.url --definitions old.json`. Ctrl-C or SIGTERM ends
    it, after the received messages are forwarded. Start it again at any time, also after a crash: a message
    is removed from the old broker when the new one has confirmed it. So none is lost, and one may arrive
    twice.

    The new broker needs the queues: import the definitions of the old one there. Messages go to other
    consumers of the old broker first. To bring the results of a client back that stays at the old broker:
    `berth broker forward --from new.url --to old.url --queue client.shop.0`, and leave this queue out in the
    other direction: `--except client.shop.0`. To wait for the end: `--until-empty 30`.

    The steps of a whole move are in features/broker_forwarding/README.md. Other users of this machine see a
    command's arguments: write a URL with a password into a file.
    """
    old, new = url_or_file(old), url_or_file(new)
    check_urls(old, new)
    queues = chosen_queues(cli.settings, old, choice.definitions, choice.queues or (), choice.excluding or ())
    names = BrokerNames(cli.settings.bus.exchange)
    forwarder = Forwarder(old, new, names, queues, all_must_exist=bool(choice.queues))
    stopping = asyncio.Event()
    stop_on_signals(stopping)
    began = monotonic()
    _report(f"forwarding {_queues(len(queues))} from {place(old)} to {place(new)}; Ctrl-C ends it")
    async with asyncio.TaskGroup() as group:
        others = [group.create_task(_ForwardingReport(forwarder).run())]
        if until_empty is not None:
            others.append(group.create_task(stop_when_empty(forwarder, until_empty, stopping)))
        await forwarder.run(stopping)
        for task in others:
            task.cancel()
    cli.value(
        Forwarded(forwarder.forwarded, forwarder.queue_count, round(monotonic() - began, 1)),
        f"{forwarder.forwarded} messages of {_queues(forwarder.queue_count)} forwarded",
    )


def _queues(count: int) -> str:
    return f"{count} queue{'' if count == 1 else 's'}"


def _report(line: str) -> None:
    sys.stderr.write(printable(line) + "\n")
    sys.stderr.flush()


@dataclass
class _ForwardingReport:
    """Prints every few seconds how many messages `berth broker forward` has forwarded, if that changed."""

    forwarder: Forwarder
    write: Callable[[str], None] = _report
    _last: str = field(default="", init=False)

    async def run(self) -> None:
        before = self.forwarder.forwarded
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            now = self.forwarder.forwarded
            line = self._line((now - before) / _REPORT_SECONDS)
            before = now
            if line != self._last:
                self.write(line)
                self._last = line

    def _line(self, rate: float) -> str:
        """Return a line of text: the number of queues, of forwarded and of waiting messages, the `rate`
        (messages a second), and the fullest queue.
        """
        forwarder = self.forwarder
        waiting = sum(forwarder.waiting.values()) + forwarder.in_hand
        done = f"{forwarder.forwarded} messages forwarded, {rate:.0f}/s"
        line = f"{_queues(forwarder.queue_count)}, {done}, {waiting} waiting"
        if forwarder.waiting:
            line += f" (most in {max(forwarder.waiting, key=forwarder.waiting.__getitem__)})"
        return line
