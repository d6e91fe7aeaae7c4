"""Tracks the hosts of the instances that waiting requests name.

While a request waits, the instances that its hints or server group name may move. So their hosts are queried
from placement again: at the start, after a change at one of the hosts, and once a second. If a host differs,
the waiting request is evaluated again.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from bus.messages import BuildRequested
from bus.vocabulary import portions
from scheduler_worker.extension import Order

AT_ONCE = 500  # equivalence classes in one query
Resolves = Callable[[Sequence[BuildRequested]], Awaitable[Sequence[Order]]]
# Returns a value that differs if an order must be evaluated again, and the hosts on which it depends.
Watch = Callable[[Order], tuple[object, frozenset[str]]]


class RelatedHosts:
    """Tracks the hosts of instances that hints of waiting requests name, for each equivalence class."""

    def __init__(self, resolve: Resolves, watch: Watch) -> None:
        self._resolve = resolve
        self._watch = watch
        self._known: dict[str, object] = {}  # equivalence class → group, instances and slots last read
        self._roots: frozenset[str] = frozenset()  # hosts of all named instances
        self.is_outdated = False
        self._reading = False

    @property
    def is_current(self) -> bool:
        """Return whether the known hosts of instances that waiting requests name are up to date."""
        return not self.is_outdated and not self._reading

    def include(self, roots: Collection[str]) -> bool:
        """Return whether a named instance is on one of the given hosts."""
        return bool(self._roots) and not self._roots.isdisjoint(roots)

    async def moved(self, naming: Mapping[str, BuildRequested]) -> tuple[list[str], dict[str, str]]:
        """Return the equivalence classes whose hints name instances that moved, and for classes that can no
        longer fit any host, the reason. `naming` has one request of each class.
        """
        self.is_outdated, self._reading = False, True
        changed: list[str] = []
        impossible: dict[str, str] = {}
        known: dict[str, object] = {}
        roots: set[str] = set()
        try:
            for some in portions(naming, AT_ONCE):
                answers = await self._resolve([naming[kind] for kind in some])
                for kind, order in zip(some, answers, strict=True):
                    if order.verdict.invalid:
                        impossible[kind] = order.verdict.invalid
                        continue
                    known[kind], on = self._watch(order)
                    roots |= on
                    if self._known.get(kind) != known[kind]:
                        changed.append(kind)
        except BaseException:
            self.is_outdated = True
            raise
        finally:
            self._reading = False
        self._known, self._roots = known, frozenset(roots)
        return changed, impossible
