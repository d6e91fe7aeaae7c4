"""The result of an evaluation that found no host: hosts considered, hosts that each constraint removed, and
the reason as a sentence.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from msgspec import structs

from bus.decisions import EXCLUDED, Decision, NearMiss, Removal
from bus.messages import BuildRequested
from scheduler_worker.core.rule import Alternative

NEAREST = 5  # near misses a record names
EXAMPLES = 3  # hosts named for each constraint
NO_ROOM_NOW = "free capacity taken by instances just placed"
# Codes of removals that are about the state of hosts, as the sentence names them; empty: by the constraint.
STATES = {
    "host": "",
    "forbidden_host": "",
    "reserved": "",
    "cell_disabled": "",
    "disabled": "disabled",
    "down": "down",
    "has_agent": "without an agent or conductor",
    "tenant": "of other projects",
    "server_group": "ruled out by the server group",
    "chosen": "",
    "unseen": "",
}
MAX_REFUSED = 16  # how many refusals a record keeps


@dataclass(frozen=True, slots=True)
class Shortage:
    """The result of an evaluation without a host, shared by all equal requests."""

    considered: int = 0
    removals: tuple[Removal, ...] = ()  # placement's constraints, then ours
    nearest: tuple[NearMiss, ...] = ()
    may_pass: bool = False  # does something that passes by itself stand in the way?
    promised: bool = False  # whether only reservations of other requests are in the way
    named: bool = False  # the near misses are the hosts that the request names
    fitted: int = 0  # instances that would have a host, if all need one together
    alternative_index: int = 0  # 0: the flavor asked for; n: the nth of or_else
    notes: tuple[str, ...] = ()
    unknown: str = ""  # a place was asked for that there is not: what there is
    refusal: str = ""  # the question itself cannot be meant

    @property
    def code(self) -> str:
        """Return the code of the constraint that left no host."""
        if self.refusal:
            return "unreadable"
        if self.fitted:
            return "room"
        deciding = next((removal for removal in self.removals if not removal.left), None)
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
        """Return the reason as a sentence."""
        if self.refusal or self.unknown:
            return self.refusal or self.unknown
        parts = [f"no valid host among {self.considered}"]
        removed = [_removed(removal) for removal in self.removals]
        if removed:
            parts.append(", ".join(removed))
        if refused:
            parts.append(f"placement refused {'; '.join(refused)}")
        if self.nearest and not self.named:
            parts.append("closest " + "; ".join(_closest(self.nearest)))
        if self.fitted:
            needed = request.at_least or instances
            parts.append(f"free capacity for {self.fitted} of the {needed} instances needed at once")
        whole = ": ".join((parts[0], ". ".join(parts[1:]))) if parts[1:] else parts[0]
        if not self.named:
            return whole
        return ". ".join([*(f"{miss.host}: {miss.lacks}" for miss in self.nearest), whole])


def named_reserved(alternative: Alternative, removal: Removal) -> Removal:
    """Return a removal with the code for reserved hosts, if it excludes some reserved hosts."""
    if not alternative.reserved or removal.code != "forbidden_host":
        return removal
    says = f"{EXCLUDED} or " if alternative.request.ignore_hosts else ""
    return structs.replace(removal, constraint=f"{says}reserved for other requests", code="reserved")


def lacking_reserved(alternative: Alternative, miss: NearMiss, roots: Sequence[str]) -> NearMiss:
    """Return a near miss with the reason of the reservation, if its host is reserved."""
    root = next((one for one in roots if one in alternative.reserved), "")
    if not root:
        return miss
    code = "reserved" if miss.code == "forbidden_host" else miss.code
    return structs.replace(
        miss, lacks=miss.lacks.replace(EXCLUDED, alternative.why_reserved(root)), code=code
    )


def _removed(removal: Removal) -> str:
    state = STATES.get(removal.code)
    if state is None:
        return f"{removal.constraint} removed {removal.removed}"
    return f"{state or removal.constraint}: {removal.removed} host{'' if removal.removed == 1 else 's'}"


def _closest(nearest: Sequence[NearMiss]) -> Iterator[str]:
    """Yield the near misses as texts; hosts that lack the same are named together."""
    by_lack: dict[str, list[str]] = {}
    for miss in nearest:
        by_lack.setdefault(miss.lacks, []).append(miss.host)
    for lacks, hosts in by_lack.items():
        yield f"{', '.join(hosts)} ({lacks})"


def running(left: int, removed: Sequence[Removal]) -> Iterator[Removal]:
    """Yield the removals that rejected hosts, each with the number of hosts left."""
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
