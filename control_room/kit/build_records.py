"""The records about a build or request, the subject of sections on its page."""

from dataclasses import dataclass

from bus.queries import BuildStands, DecisionFound


@dataclass(frozen=True)
class BuildRecords:
    """The records of workers about a build or request; the subject of sections on its page."""

    id: str
    builds: list[BuildStands]
    decided: DecisionFound
    silent: list[str]
