"""Hosts of the instances that waiting requests must be near to, or apart from: named instances and members of
server groups.

The index knows usages but not consumers, so placement is asked for their hosts: when such a request begins
to wait, when anything changed at one of the hosts, and once a second. The request is woken if the answer
differs from the last one.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from bus.chunks import portions
from bus.messages import BuildRequested
from scheduler_worker.core.events import Begun
from scheduler_worker.core.order import Order

Resolves = Callable[[Sequence[BuildRequested]], Awaitable[Sequence[tuple[Order, Begun]]]]
AT_ONCE = 500  # kinds that are asked for in one question


class RelatedHosts:
    """The last answers, by equivalence class."""

    def __init__(self, resolve: Resolves) -> None:
        self._resolve = resolve
        self._told: dict[str, object] = {}
        self._roots: dict[str, frozenset[str]] = {}  # class → the hosts of its related instances
        self._around: frozenset[str] = frozenset()
        self.stirred = False  # the answers may be outdated
        self._asking = False

    @property
    def settled(self) -> bool:
        """Return whether the answer is final."""
        return not self.stirred and not self._asking

    def around(self, roots: Collection[str]) -> bool:
        """Return whether a related instance was on one of the hosts."""
        return bool(self._around) and not self._around.isdisjoint(roots)

    async def moved(self, naming: Mapping[str, BuildRequested]) -> tuple[list[str], dict[str, str]]:
        """Return the classes whose related instances have moved, and the classes that can never be satisfied,
        with the reason.

        A class without a previous answer counts as moved.
        """
        self.stirred, self._asking = False, True
        kinds = list(naming)
        changed: list[str] = []
        impossible: dict[str, str] = {}
        told: dict[str, object] = {}
        roots: dict[str, frozenset[str]] = {}
        try:
            for some in portions(kinds, AT_ONCE):
                answers = await self._resolve([naming[kind] for kind in some])
                for kind, (order, begun) in zip(some, answers, strict=True):
                    if begun.refusal:
                        impossible[kind] = begun.refusal
                        continue
                    told[kind], roots[kind] = _named(order)
                    if self._told.get(kind) != told[kind]:
                        changed.append(kind)
        except BaseException:
            self.stirred = True
            raise
        finally:
            self._asking = False
        self._told, self._roots = told, roots
        self._around = frozenset[str]().union(*roots.values())
        return changed, impossible


def names_other_instances(request: BuildRequested) -> bool:
    hints = request.hints
    return bool(hints.group or hints.same_host or hints.different_host)


def _named(order: Order) -> tuple[object, frozenset[str]]:
    """Return the related instances with their hosts, and the set of all hosts. Soft groups exclude no
    host.
    """
    alternative = order.alternatives[0]
    group = alternative.group
    if group is not None and group.policy.startswith("soft"):
        group = None
    members = {**group.members, **group.left} if group is not None else {}
    roots = {root for places in members.values() for root in places}
    return (group, alternative.same, alternative.different), frozenset(
        roots | (alternative.same or set()) | alternative.different
    )
