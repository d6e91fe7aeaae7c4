"""Members that were just chosen for server groups: placement reports them only in later answers."""

from bus.vocabulary import Id


class Joined:
    """Kept as long as a batch is under way that may have asked placement before it was claimed.

    What is remembered for longer would be wrong: members move, and leave.
    """

    def __init__(self) -> None:
        self._places: dict[Id, dict[Id, tuple[str, int]]] = {}  # group → member → root, the batch begun last
        self._under_way: set[int] = set()
        self._last = 0

    def begin(self) -> int:
        """Begin a batch, before its groups are queried."""
        self._last += 1
        self._under_way.add(self._last)
        return self._last

    def end(self, batch: int) -> None:
        self._under_way.discard(batch)
        if not self._places:
            return
        oldest = min(self._under_way, default=self._last + 1)
        for group, members in list(self._places.items()):
            self._places[group] = left = {one: there for one, there in members.items() if there[1] >= oldest}
            if not left:
                del self._places[group]

    def join(self, group: Id, member: Id, root: str) -> None:
        """Record that a member was chosen for a host, or claimed there if it is recorded again."""
        self._places.setdefault(group, {})[member] = root, self._last

    def leave(self, group: Id, member: Id) -> None:
        """Remove a member that was not placed."""
        self._places.get(group, {}).pop(member, None)

    def of(self, group: Id) -> dict[Id, str]:
        return {member: root for member, (root, _) in self._places.get(group, {}).items()}

    def copy(self) -> "Joined":
        """Return a copy for a what-if query."""
        other = Joined()
        other._places = {group: dict(members) for group, members in self._places.items()}
        return other
