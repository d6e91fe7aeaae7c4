"""Commands that delete, close or move: their option `--dry-run`, and several targets in one command.

Such a command takes an `ActCli` in place of `Cli`. With `--dry-run` it resolves and judges as without,
reports what would happen, and calls `RecordingBus.rehearse` in place of sending its messages.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from berth.kit.terminal import Cli
from bus import parts
from bus.errors import UNANSWERED, OperationRefused, Unavailable
from bus.masking import printable

if TYPE_CHECKING:
    from bus.delivery.recording import RecordingBus

DRY_RUN = "Say what would happen, and change nothing. Exit 1 if it would be refused."


@dataclass(frozen=True)
class ActCli(Cli):
    """Prints the results of a command that has the option `--dry-run`."""

    dry_run: bool = False

    @asynccontextmanager
    async def bus(self, name: str) -> AsyncIterator["RecordingBus"]:
        """Connect to the message bus. With `--dry-run` the connection refuses to send acts."""
        async with super().bus(name) as bus:
            bus.rehearses = self.dry_run
            yield bus

    @asynccontextmanager
    async def recorded(self, act: str, target: str, detail: str) -> AsyncIterator[None]:
        """Record an act that no message requests. A dry run calls `rehearse` in place of this."""
        if self.dry_run:
            raise RuntimeError(f"{act} in a dry run")
        async with super().recorded(act, target, detail):
            yield

    async def rehearse(self, act: str, target: str) -> None:
        """Raise OperationRefused if the operator may not do an act that no message requests. If no berth
        answers, the act is not checked, as without `--dry-run`.
        """
        with suppress(Unavailable, TimeoutError):
            async with self.bus(act) as bus:
                bus.rehearse_act(act, target)

    def becomes(self, participle: str) -> str:
        """Return what becomes of a target: `deleted` or, in a dry run, `would be deleted`."""
        return f"would be {participle}" if self.dry_run else participle

    def is_now(self, participle: str) -> str:
        """Return what a target is afterwards: `is deleted` or, in a dry run, `would be deleted`."""
        return f"{'would be' if self.dry_run else 'is'} {participle}"

    def value(self, record: Any, sentence: str, style: str | None = None) -> None:
        """Print a record or its sentence. The JSON object of a dry run has the field `dry_run`."""
        if self.dry_run and self.as_json:
            record = {"dry_run": True, **msgspec.json.decode(parts.encoder().encode(record))}
        super().value(record, sentence, style)

    async def each(self, names: Sequence[str], act: Callable[[str], Awaitable[bool | None]]) -> int:
        """Do an act on each of these targets, whatever becomes of the others; return the exit code, which is
        1 if an act returns False or is refused. The refusal of a single target is raised.
        """
        names, failed = [*dict.fromkeys(names)], False
        for name in names:
            try:
                failed |= await act(name) is False
            except (OperationRefused, *UNANSWERED) as refused:
                if len(names) == 1:
                    raise
                failed = True
                text = str(refused)
                self.value(
                    {"target": name, "refused": text},
                    printable(text if name in text else f"{name}: {text}", lines=True),
                    "red",
                )
        return 1 if failed else 0
