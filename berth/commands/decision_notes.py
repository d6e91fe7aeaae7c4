"""Prints the notes of a decision: parts of the request without effect."""

from collections.abc import Iterable

from rich.markup import escape

from berth.commands.terminal import complain, printable
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import AnswerRefused, Unavailable, Unroutable
from bus.messages import BuildEnded
from bus.queries import FindBuilds

SECONDS = 5.0  # for the cell's answer


class Noted:
    """Prints each note once; notes from before the publication are not repeated."""

    def __init__(self, bus: Bus, said: Iterable[str] = ()) -> None:
        self._bus = bus
        self._said = set(said)
        self._asked = False

    def tell(self, notes: Iterable[str]) -> None:
        for note in notes:
            if note not in self._said:
                self._said.add(note)
                complain.print(f"[yellow]note[/yellow]: {escape(printable(note))}")

    async def ask(self, ended: BuildEnded) -> None:
        """Read the decision from its cell, because an end does not contain it. The first build of a request
        is sufficient.
        """
        if self._asked:
            return
        self._asked = True
        find = self._bus.asker(topics.FIND_BUILDS, timeout=SECONDS)
        try:
            found = await find(FindBuilds(cell=ended.cell, builds=(ended.build,)))
        except (Unavailable, Unroutable, AnswerRefused) as problem:
            complain.print(f"[yellow]note[/yellow]: what was noted is not known: {escape(str(problem))}")
            return
        for build in found.builds:
            self.tell(build.placed.decision.notes)
