"""Who has just been chosen for which server group: placement tells of it only to who asks afterwards."""

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
        """A batch, before it asks who is in the groups it names."""
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
        """It was chosen or, when this is said again, claimed there."""
        self._places.setdefault(group, {})[member] = root, self._last

    def leave(self, group: Id, member: Id) -> None:
        """It came to nothing."""
        self._places.get(group, {}).pop(member, None)

    def of(self, group: Id) -> dict[Id, str]:
        return {member: root for member, (root, _) in self._places.get(group, {}).items()}

    def copy(self) -> "Joined":
        """For somebody who only supposes."""
        other = Joined()
        other._places = {group: dict(members) for group, members in self._places.items()}
        return other
