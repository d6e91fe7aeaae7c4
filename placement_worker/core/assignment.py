"""Assigns a provider of one host to each slot (part of a query), such that the combination is valid.

The search is depth first, and begins with the slot that has the fewest providers. A branch is abandoned as
soon as it cannot succeed, and a state without a solution is recognized when it occurs again, also with
equivalent providers. So the first solutions are found quickly, and memory is limited to one branch.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import cached_property

import numpy as np

from bus.candidates import SenselessQuery
from bus.queries import FindCandidates
from bus.reports import EXCLUDES_SIBLINGS, SHARES
from bus.requests import ResourceGroup
from bus.vocabulary import MAX_GROUPS, Resources
from placement_worker.core.index import Index, Snapshot, Tops
from placement_worker.core.index_rows import Row
from placement_worker.core.slots import JointRules, Slot, SlotPlanner

Choice = tuple[Row, ...]  # one provider for each slot

BREATH = 256  # search steps (of one or two microseconds) without a result, after which other tasks may run
WARY = 24  # consecutive dead ends after which states are remembered


def shares(row: Row) -> bool:
    """Return whether other trees may use the provider, as its trait for sharing says."""
    return SHARES in row.traits


class AssignmentSearch:
    """Searches assignments of providers to the slots of a query at one host. With `mixed`, assignments that
    use only sharing providers are left out, because they are equal for many hosts. With `unordered`, of the
    assignments that differ only in which of several equal slots has which provider, one is searched.
    """

    def __init__(
        self,
        trees: Snapshot,
        slots: Sequence[Slot],
        rules: JointRules,
        options: Sequence[Sequence[Row]],
        *,
        mixed: bool = False,
        unordered: bool = False,
    ) -> None:
        self.steps = 0
        self._rules = rules
        self._trees = trees
        self._above: dict[int, frozenset[int]] = {}
        if rules.subtrees:
            options = self._tied(options)
        self._possible = all(options)
        if not self._possible:
            return
        self._order = sorted(range(len(slots)), key=lambda nth: len(options[nth]))
        self._slots = [slots[nth] for nth in self._order]
        self._options = [options[nth] for nth in self._order]
        self._sets = [
            [number for number, members in enumerate(rules.subtrees) if nth in members] for nth in self._order
        ]
        self._asks = [
            [(name, slot.asks[name]) for name in rules.summed if name in slot.asks] for slot in self._slots
        ]
        self._twins = self._equal_slots() if unordered else [-1] * len(slots)
        self._all_bits = (1 << len(rules.needs)) - 1
        self._bits_of: dict[int, int] = {}
        self._is_mixed = [not mixed]
        self._look_ahead()
        # State of the current branch of the search.
        self._chosen: list[Row] = []
        self._taken: dict[tuple[int, str], int] = {}
        self._alone: set[int] = set()  # providers of slots with a suffix, if they must differ
        self._in_tree: dict[str, tuple[int, int]] = {}  # tree → its only chosen provider, and how often
        self._gathered = [0]  # for each depth, a bit mask of the met `rules.needs`
        # For each depth, the possible common ancestors of each set of slots in `rules.subtrees`.
        self._tops: list[list[frozenset[int]]] = [[frozenset(later) for later in self._later[0]]]
        self._picked: list[list[int]] = [[] for _ in rules.subtrees]  # chosen providers of each set
        # States of the search that cannot lead to a result.
        self._dead: set[Hashable] = set()
        self._ends = 0
        self._kinds: dict[int, int] = {}
        self._kind_names: dict[Hashable, int] = {}

    def _equal_slots(self) -> list[int]:
        """Return, for each slot, the depth of the last equal slot before it, or -1. Equal slots can exchange
        their providers, so the provider of the later one never stands before that of the other.
        """
        last: dict[Hashable, int] = {}
        twins = []
        for depth, slot in enumerate(self._slots):
            key = (
                bool(slot.suffix) or depth,  # traits are required of the group without a suffix as a whole
                tuple(sorted(slot.asks.items())),
                tuple([row.position for row in self._options[depth]]),
                slot.suffix in self._rules.isolate,
                tuple(self._sets[depth]),
            )
            twins.append(last.get(key, -1))
            last[key] = depth
        return twins

    def _look_ahead(self) -> None:
        """Compute, for each slot, which rules about several providers together (such as required traits and
        same subtrees) this and the later slots can still satisfy.
        """
        depths = len(self._slots) + 1
        self._could = [0] * depths
        self._could_mix = self._is_mixed * depths
        self._later: list[list[set[int]]] = [[set() for _ in self._rules.subtrees] for _ in range(depths)]
        for depth in range(depths - 2, -1, -1):
            rows = self._options[depth]
            self._could[depth] = self._could[depth + 1] | self._bits(depth, rows)
            self._could_mix[depth] = self._could_mix[depth + 1] or not all(map(shares, rows))
            self._later[depth] = list(self._later[depth + 1])
            for number in self._sets[depth]:
                self._later[depth][number] = self._later[depth + 1][number] | {row.position for row in rows}

    def __iter__(self) -> Iterator[Choice | None]:
        """Yield each valid assignment of providers to slots once, and None after every BREATH search steps
        without one."""
        if not self._possible:
            return
        last, fruit = len(self._slots) - 1, 0
        tried = [0] * (last + 1)
        fruitful = [False] * (last + 1)
        states: list[Hashable] = [None] * (last + 1)
        depth = 0
        while True:
            options = self._options[depth]
            if tried[depth] == len(options):
                if not fruitful[depth]:
                    self._ends += 1
                    if states[depth] is not None:
                        self._dead.add(states[depth])
                if depth == 0:
                    return
                depth -= 1
                fruitful[depth] |= fruitful[depth + 1]
                self._undo(depth)
                continue
            row = options[tried[depth]]
            tried[depth] += 1
            self.steps += 1
            while self.steps - fruit >= BREATH:
                fruit += BREATH
                yield None
            if not self._take(depth, row):
                continue
            if depth == last:
                fruitful[depth], fruit, self._ends = True, self.steps, 0
                way = list(self._chosen)
                for nth, chosen in zip(self._order, self._chosen, strict=True):
                    way[nth] = chosen
                yield tuple(way)
                self._undo(depth)
                continue
            state = self._state(depth + 1, tried) if self._ends > WARY else None
            if state is not None and state in self._dead:
                self._undo(depth)
                continue
            depth += 1
            twin = self._twins[depth]
            tried[depth] = tried[twin] - 1 if twin >= 0 else 0
            fruitful[depth], states[depth] = False, state

    def _take(self, depth: int, row: Row) -> bool:
        """Let a slot use a provider; return False, and change nothing, if a rule or the free amounts forbid
        it.
        """
        slot, position, rules = self._slots[depth], row.position, self._rules
        apart = slot.suffix in rules.isolate
        if apart and position in self._alone:
            return False
        counted = rules.apart and bool(slot.asks)
        if counted and self._in_tree.get(row.root, (position, 0))[0] != position:
            return False
        for name, asked in self._asks[depth]:
            if self._taken.get((position, name), 0) + asked > top(row, name):
                return False
        gathered = self._gathered[depth]
        if self._all_bits:
            gathered |= self._bits(depth, (row,))
            if gathered | self._could[depth + 1] != self._all_bits:
                return False
        mixed = self._is_mixed[depth] or not shares(row)
        if not (mixed or self._could_mix[depth + 1]):
            return False
        if self._sets[depth]:
            tops = self._narrowed(depth, position)
            if tops is None:
                return False
            self._tops.append(tops)
            for number in self._sets[depth]:
                self._picked[number].append(position)
        if apart:
            self._alone.add(position)
        if counted:
            self._in_tree[row.root] = position, self._in_tree.get(row.root, (position, 0))[1] + 1
        for name, asked in self._asks[depth]:
            self._taken[position, name] = self._taken.get((position, name), 0) + asked
        self._gathered.append(gathered)
        self._is_mixed.append(mixed)
        self._chosen.append(row)
        return True

    def _undo(self, depth: int) -> None:
        """Release the provider of the slot that was assigned last."""
        row, slot, rules = self._chosen.pop(), self._slots[depth], self._rules
        position = row.position
        self._gathered.pop()
        self._is_mixed.pop()
        for name, asked in self._asks[depth]:
            left = self._taken[position, name] - asked
            if left:
                self._taken[position, name] = left
            else:
                del self._taken[position, name]
        if rules.apart and slot.asks:
            only, times = self._in_tree[row.root]
            if times > 1:
                self._in_tree[row.root] = only, times - 1
            else:
                del self._in_tree[row.root]
        if slot.suffix in rules.isolate:
            self._alone.discard(position)
        if self._sets[depth]:
            self._tops.pop()
            for number in self._sets[depth]:
                self._picked[number].pop()

    def _bits(self, depth: int, rows: Sequence[Row]) -> int:
        """Return as bits which of the needed sets of traits these providers satisfy for a slot."""
        if self._slots[depth].suffix or not self._all_bits:
            return 0
        gathered = 0
        for row in rows:
            bits = self._bits_of.get(row.position)
            if bits is None:
                bits = 0
                for number, traits in enumerate(self._rules.needs):
                    if any(trait in row.traits for trait in traits):
                        bits |= 1 << number
                self._bits_of[row.position] = bits
            gathered |= bits
        return gathered

    def _up(self, row: Row) -> frozenset[int]:
        """Return the positions of a provider and of all above it."""
        known = self._above.get(row.position)
        if known is None:
            parent = self._trees.find(row.parent) if row.parent is not None else None
            known = frozenset((row.position,)) | (self._up(parent) if parent is not None else frozenset())
            self._above[row.position] = known
        return known

    @cached_property
    def _different_options(self) -> list[frozenset[int]]:
        """Return the sets of providers between which slots choose, each once."""
        sets = (frozenset([row.position for row in rows]) for rows in self._options)
        self.steps += sum(map(len, self._options)) // 16
        return list(dict.fromkeys(sets))

    @cached_property
    def _ancestors(self) -> set[int]:
        """Return the index rows of all providers that are ancestors of other providers among the options of
        this search.
        """
        everyone = {row.position: row for options in self._options for row in options}
        self.steps += len(everyone)
        return {top for position, row in everyone.items() for top in self._up(row) if top != position}

    def _tied(self, options: Sequence[Sequence[Row]]) -> list[Sequence[Row]]:
        """Leave out providers that share no subtree with options of the slots that must share one."""
        left = list(options)
        for members in self._rules.subtrees:
            tops = {row.position for nth in members for row in left[nth]}
            for rows in {tuple(row.position for row in left[nth]): left[nth] for nth in members}.values():
                tops &= frozenset().union(*(self._up(row) for row in rows))
                self.steps += len(rows)
            for nth in members:
                left[nth] = [row for row in left[nth] if not tops.isdisjoint(self._up(row))]
        return left

    def _narrowed(self, depth: int, position: int) -> list[frozenset[int]] | None:
        tops = list(self._tops[-1])
        self.steps += sum(map(len, tops)) // 8
        up = self._above[position]
        for number in self._sets[depth]:
            later, picked = self._later[depth + 1][number], self._picked[number]
            tops[number] = frozenset(
                top for top in tops[number] & up if top == position or top in later or top in picked
            )
            if not tops[number]:
                return None
        return tops

    def _state(self, depth: int, tried: Sequence[int]) -> Hashable:
        """Return a key of the search's state, equal for states that differ only in equivalent providers.
        While only some of several equal slots have providers, the key is equal only for the same providers:
        which of them the others may have depends on their order.
        """
        begins = [max(tried[twin] - 1, 0) if -1 < twin < depth else 0 for twin in self._twins[depth:]]
        is_between = not any(-1 < twin < depth for twin in self._twins[depth:])
        usable = zip(self._options[depth:], begins, strict=True)
        rows = {row.position: row for options, begin in usable for row in options[begin:]}
        trees = {row.root for row in rows.values()} if self._rules.apart else ()
        sets = [self._tops[-1][number] if later else () for number, later in enumerate(self._later[depth])]
        for row in self._chosen:
            if row.root in trees or any(row.position in tops for tops in sets):
                rows[row.position] = row
        self.steps += len(rows) * (1 + 2 * len(sets)) // 4  # computing the key also takes time
        items = []
        for position, row in rows.items():
            items.append(
                (
                    self._kind(row) if is_between else position,
                    tuple([self._taken.get((position, name), 0) for name in self._rules.summed]),
                    position in self._alone,
                    self._in_tree.get(row.root, (-1, 0))[0] == position,
                    tuple([position in tops for tops in sets]),
                    tuple([position in picked for picked in self._picked]),
                )
            )
        return depth, tuple(begins), self._gathered[-1], self._is_mixed[-1], tuple(sorted(items))

    def _kind(self, row: Row) -> int:
        known = self._kinds.get(row.position)
        if known is None:
            place: Hashable = None
            if self._rules.subtrees:
                up = self._up(row) - {row.position}
                place = row.position if row.position in self._ancestors else up
            name = (
                tuple([row.position in some for some in self._different_options]),
                tuple(top(row, name) for name in self._rules.summed),
                tuple([any(trait in row.traits for trait in some) for some in self._rules.needs]),
                self._rules.apart and row.root,
                place,
            )
            known = self._kinds[row.position] = self._kind_names.setdefault(name, len(self._kind_names))
        return known


def top(row: Row, name: str) -> int:
    """Return the largest amount of a resource class that a single claim can get from a provider now."""
    inventory = row.inventories.get(name)
    return min(row.free[name], inventory.max_unit) if inventory is not None else 0


def fullest_first(rows: list[Row], asks: Resources, root: str) -> list[Row]:
    """Sort providers: used providers with the least free share of the requested classes (`asks`) first, then
    unused providers; providers of other trees than that of `root` last.

    The first allocation then fills a half-used NUMA cell, GPU or physical function. Of unused providers those
    come last whose use excludes their siblings, such as a GPU that could serve another type. Equal providers
    are sorted by id.
    """
    if len(rows) < 2 or not asks:
        return rows

    def left(row: Row) -> tuple[bool, bool, bool, float, str]:
        free, capacity, is_unused, share = row.free, row.capacity, True, 0.0
        for name in asks:
            has, total = free[name], capacity[name]
            is_unused = is_unused and has == total
            share += has / (total or 1)
        return row.root != root, is_unused, is_unused and EXCLUDES_SIBLINGS in row.traits, share, row.uuid

    return sorted(rows, key=left)


def check(query: FindCandidates) -> None:
    """Raise SenselessQuery if the query contradicts itself or a group of it requests nothing."""
    groups, suffixes = query.groups, {group.suffix for group in query.groups}
    if len(groups) > MAX_GROUPS:
        raise SenselessQuery(f"groups: {len(groups)} of them, at most {MAX_GROUPS}")
    tied = {suffix for same_subtree in query.same_subtree for suffix in same_subtree} - {""}
    before: set[str] = set()
    for position, group in enumerate(groups):
        if group.suffix in before:
            group_name = repr(group.suffix) if group.suffix else "without a suffix"
            raise SenselessQuery(f"groups[{position}].suffix: there is a group {group_name} already")
        before.add(group.suffix)
        if not group.resources and group.suffix not in tied:
            why = ", and no same_subtree names it" if group.suffix else ""
            raise SenselessQuery(f"groups[{position}].resources: empty{why}")
        if group.required or group.required_any or group.member_of:
            _check_demands(group, f"groups[{position}]")
    if not any(group.resources for group in groups):
        raise SenselessQuery("groups: none of them asks for resources")
    for position, same_subtree in enumerate(query.same_subtree):
        for suffix in same_subtree:
            if not suffix or suffix not in suffixes:
                raise SenselessQuery(f"same_subtree[{position}]: there is no group with suffix {suffix!r}")
    for position, suffix in enumerate(query.isolated):
        if not suffix or suffix not in suffixes:
            raise SenselessQuery(f"isolated[{position}]: there is no group with suffix {suffix!r}")
    for index, choice in enumerate(query.root_member_of):
        if not choice:
            raise SenselessQuery(f"root_member_of[{index}]: empty")
    for trait in query.root_required:
        if trait in query.root_forbidden:
            raise SenselessQuery(f"root_forbidden: {trait} is required as well")


def _check_demands(group: ResourceGroup, at: str) -> None:
    forbidden = set(group.forbidden)
    for trait in group.required:
        if trait in forbidden:
            raise SenselessQuery(f"{at}.forbidden: {trait} is required as well")
    for index, traits in enumerate(group.required_any):
        if forbidden.issuperset(traits):
            raise SenselessQuery(f"{at}.required_any[{index}]: {'all are forbidden' if traits else 'empty'}")
    for index, choice in enumerate(group.member_of):
        if not choice:
            raise SenselessQuery(f"{at}.member_of[{index}]: empty")


class Unexcluded(Snapshot):
    """The provider trees as if the use of a provider excluded no siblings."""

    def top(self, name: str) -> Tops:
        index, kind = self.index, self.index.classes[name]
        excluding = index.traits.get(EXCLUDES_SIBLINGS)
        rows = [] if excluding is None else [index.at[position] for position in excluding.rows().tolist()]
        excluded = [row for row in rows if row is not None and row.excluded and name in row.capacity]
        if not excluded:
            return kind.top
        top = kind.top.copy()
        for row in excluded:
            free = row.capacity[name] - row.used.get(name, 0)
            top[row.position] = max(min(free, row.inventories[name].max_unit), 0)
        return top


def matching(index: Index, groups: Sequence[ResourceGroup]) -> set[str]:
    """Return the ids of the providers that satisfy all these groups, each of them alone. Siblings that the
    use of a provider excludes count as free.
    """
    met = SlotPlanner(Unexcluded(index), FindCandidates(groups=tuple(groups))).providers()
    rows = [index.at[position] for position in np.flatnonzero(met).tolist()]
    return {row.uuid for row in rows if row is not None}
