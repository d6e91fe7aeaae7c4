"""Why there is no host for a request: what was looked at, what each constraint removed, how that reads."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bus.decisions import Decision, NearMiss, Removal
from bus.messages import BuildRequested

NEAREST = 5  # near misses a record names
EXAMPLES = 3  # hosts named for each constraint
NO_ROOM_NOW = "room beside what was just chosen"
MAX_REASON = 3900  # a Cause, with room for the word that fences it
MAX_REFUSED = 16  # how many refusals a record keeps


@dataclass(frozen=True, slots=True)
class Shortage:
    """Everyone was looked at once. It is the same for all requests that are alike."""

    considered: int = 0
    removals: tuple[Removal, ...] = ()  # placement's constraints, then ours
    nearest: tuple[NearMiss, ...] = ()
    may_pass: bool = False  # does something that passes by itself stand in the way?
    promised: bool = False  # ... or only what others are just being given?
    nth: int = 0  # 0: the flavor asked for; n: the nth of or_else
    notes: tuple[str, ...] = ()
    unknown: str = ""  # a place was asked for that there is not: what there is
    refusal: str = ""  # the question itself cannot be meant

    @property
    def code(self) -> str:
        """What decided it: the constraint that left nobody."""
        if self.refusal:
            return "unreadable"
        deciding = next((one for one in self.removals if not one.left), None)
        if deciding is None:
            return "room" if self.considered else "no_hosts"
        return deciding.code or deciding.about or deciding.constraint

    def decision(self, refused: tuple[str, ...]) -> Decision:
        return Decision(
            considered=self.considered,
            removals=self.removals,
            nearest=self.nearest,
            refused=refused,
            code=self.code,
            notes=self.notes,
        )

    def reason(self, request: BuildRequested, instances: int, refused: Sequence[str]) -> str:
        """In a sentence."""
        if self.refusal or self.unknown:
            return self.refusal or self.unknown
        parts = [f"no valid host among {self.considered}"]
        removed = [f"{removal.constraint} removed {removal.removed}" for removal in self.removals]
        if removed:
            parts.append(", ".join(removed))
        if refused:
            parts.append(f"placement refused {'; '.join(refused)}")
        if self.nearest:
            parts.append("closest " + "; ".join(_closest(self.nearest)))
        if instances > 1 and not request.at_least:
            parts.append(f"room is needed for {instances} instances at once")
        return ": ".join((parts[0], ". ".join(parts[1:]))) if parts[1:] else parts[0]


def _closest(nearest: Sequence[NearMiss]) -> Iterator[str]:
    """Hosts that lack the same are named together."""
    by_lack: dict[str, list[str]] = {}
    for miss in nearest:
        by_lack.setdefault(miss.lacks, []).append(miss.host)
    for lacks, hosts in by_lack.items():
        yield f"{', '.join(hosts)} ({lacks})"


def running(left: int, removed: Sequence[Removal]) -> Iterator[Removal]:
    """Those that removed somebody, with how many each left."""
    for removal in removed:
        if removal.removed:
            left -= removal.removed
            yield Removal(
                constraint=removal.constraint,
                removed=removal.removed,
                left=left,
                about=removal.about,
                code=removal.code,
                hosts=removal.hosts,
            )
