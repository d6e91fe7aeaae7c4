"""Whom those that wait are to be beside, or apart from: other instances, and members of server groups.

Placement's memory knows how much is used and not by whom, so it is asked where they are: when somebody waits
who names them, when anything changed where one of them was, and once a second. Who names them is called when
the answer is another one than before.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence

from bus.messages import BuildRequested
from scheduler_worker.core.events import Begun
from scheduler_worker.core.order import Order

Resolves = Callable[[Sequence[BuildRequested]], Awaitable[Sequence[tuple[Order, Begun]]]]
AT_ONCE = 500  # kinds that are asked for in one question


class Company:
    """As it was told last, by the kinds of those that wait."""

    def __init__(self, resolve: Resolves) -> None:
        self._resolve = resolve
        self._told: dict[str, object] = {}
        self._roots: dict[str, frozenset[str]] = {}  # of each kind, where those are that it names
        self._around: frozenset[str] = frozenset()
        self.stirred = False  # it may be otherwise now
        self._asking = False

    @property
    def settled(self) -> bool:
        """Is it known as it is?"""
        return not self.stirred and not self._asking

    def around(self, roots: Collection[str]) -> bool:
        """Was somebody at one of these who is named?"""
        return bool(self._around) and not self._around.isdisjoint(roots)

    async def moved(self, naming: Mapping[str, BuildRequested]) -> tuple[list[str], dict[str, str]]:
        """Of these kinds, for whom it is otherwise than before; and whose wishes cannot be met any more, why.

        Whoever was not asked for before has looked at some moment: it may be otherwise since.
        """
        self.stirred, self._asking = False, True
        kinds = list(naming)
        changed: list[str] = []
        impossible: dict[str, str] = {}
        told: dict[str, object] = {}
        roots: dict[str, frozenset[str]] = {}
        try:
            for at in range(0, len(kinds), AT_ONCE):
                some = kinds[at : at + AT_ONCE]
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


def names_others(request: BuildRequested) -> bool:
    hints = request.hints
    return bool(hints.group or hints.same_host or hints.different_host)


def _named(order: Order) -> tuple[object, frozenset[str]]:
    """Who they are and where, and the hosts of all of them. A soft group keeps nobody away."""
    wish = order.wishes[0]
    group = wish.group
    if group is not None and group.policy.startswith("soft"):
        group = None
    members = {**group.members, **group.left} if group is not None else {}
    roots = {root for places in members.values() for root in places}
    return (group, wish.same, wish.different), frozenset(roots | (wish.same or set()) | wish.different)
