"""The provider trees of an agent's hosts: as drivers have them, as placement does, and what is reported."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence

from bus.claims import keeper
from bus.reports import ProviderReport, Reshaping
from bus.resources import Consumer, Provider
from bus.vocabulary import Allocations
from compute_sim.core.hardware import furnished
from compute_sim.core.provider_tree import ProviderTree, TreeProvider, answered, differences
from compute_sim.core.reshaping import fits_tree, reshaping
from compute_sim.disk import AgentDisk
from compute_sim.fleet import SimHost
from compute_sim.guests import GuestRecord

log = logging.getLogger(__name__)

NOT_TAKEN_SO_OFTEN = 3  # then it is said aloud


class HostTrees:
    """Of hosts that are reported as provider trees: those that Ironic speaks for are not among them."""

    def __init__(self, hosts: Iterable[SimHost], cell: str, agent: str, disk: AgentDisk) -> None:
        self.cell, self.agent = cell, agent
        self._hosts = {host.root: host for host in hosts if not host.metal}
        self._disk = disk
        self._devices = disk.devices
        self._pools: dict[str, None] = {}  # what guests hold that is none of their hosts'
        self._stored: dict[str, tuple[TreeProvider, ...]] = {}
        self._trees: dict[str, ProviderTree] = {}
        self._told: dict[str, int] = {}  # root → the sequence of its last report
        self._newest_taken = -1  # the highest sequence of ours that the last look found
        self._not_taken: dict[str, int] = {}  # root → how many looks in a row have not found it
        self._changed: dict[str, None] = {}
        self._alike: dict[str, list[Provider]] = {}  # root → placement's answer that it was as it is
        self._to_fit: dict[str, None] = {}  # roots of which guests, or the tree, are others since they fitted
        self._follow_use = {
            root for root, host in self._hosts.items() if any(one.follows_use for one in host.drivers)
        }
        for root in self._hosts:
            self._say_anew(root)

    @property
    def roots(self) -> Sequence[str]:
        return tuple(self._hosts)

    def report(self, root: str, sequence: int) -> tuple[tuple[ProviderReport, ...], Reshaping | None]:
        """What is to be said of this host now, and what moves by that."""
        self._told[root] = sequence
        self._changed.pop(root, None)
        return self._trees[root].report(), self._reshaping(root)

    def _reshaping(self, root: str) -> Reshaping | None:
        guests = [((one.build, one.attempt), one.allocations) for one in self._disk.hosted.of(root)]
        return reshaping(self._stored.get(root, ()), self._trees[root], guests)

    def use_changed(self, root: str) -> None:
        """Guests came or went: where drivers follow that, what they say may be otherwise now."""
        if root in self._hosts:
            self._to_fit[root] = None
        if root not in self._follow_use:
            return
        before = self._trees[root].report()
        self._say_anew(root)
        if self._trees[root].report() != before:
            self._changed[root] = None

    def take_changed(self) -> list[str]:
        """Hosts of which something else is to be said, each once."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def compare(
        self, providers: Iterable[Provider], owners: Mapping[str, Provider]
    ) -> Iterator[tuple[str, bool]]:
        """Host by host: is placement's answer not what it is, so that it is to be reported?

        Of many it takes long: whoever goes through them gives others a turn.
        """
        answers: dict[str, list[Provider]] = {}
        for one in providers:
            answers.setdefault(one.root, []).append(one)
        coming = self._still_coming(owners)
        for root, host in self._hosts.items():
            yield root, root not in coming and self._differs(host, owners.get(root), answers.get(root, []))

    def _differs(self, host: SimHost, owner: Provider | None, answer: list[Provider]) -> bool:
        root = host.root
        if self._is_as_before(root, owner, answer):
            return False
        self._alike.pop(root, None)
        first = root not in self._stored
        self._stored[root] = answered(answer).get(root, ())
        self._say_anew(root)
        found = [*_of_owner(owner, host, self.cell, self.agent)]
        untold = first or not self._taken(root, owner)
        found += differences(self._stored[root], self._trees[root], closed_too=untold)
        if moves := self._reshaping(root):
            found.append(f"what {len(moves.guests)} guests hold is of other providers")
        if found:
            log.info("%s is reported: %s", host.host, "; ".join(found[:20]))
        elif root not in self._follow_use and not self._has_more(root):
            self._alike[root] = answer
        self._note_taken(host, owner)
        return bool(found)

    def _still_coming(self, owners: Mapping[str, Provider]) -> set[str]:
        """Hosts whose reports wait for placement, which goes on taking those before them: told once more they
        would wait behind themselves."""
        ours = [one.sequence for one in owners.values() if (one.cell, one.agent) == (self.cell, self.agent)]
        newest, before = max(ours, default=-1), self._newest_taken
        self._newest_taken = newest
        if newest <= before:
            return set()
        later = (root for root, told in self._told.items() if told > newest)
        return {root for root in later if not self._taken(root, owners.get(root))}

    def _is_as_before(self, root: str, owner: Provider | None, answer: list[Provider]) -> bool:
        """There was nothing to say of it, and nothing is otherwise since, but what is used of it."""
        alike = self._alike.get(root)
        if alike is None or not self._taken(root, owner):
            return False
        return [*map(_but_for_use, alike)] == [*map(_but_for_use, answer)]

    def _has_more(self, root: str) -> bool:
        """Placement has classes of it that its tree has not: what is used of them may have to move."""
        tree = self._trees[root]
        return any(
            (now := tree.by_id(was.id)) is None or not was.inventories.keys() <= now.inventories.keys()
            for was in self._stored[root]
        )

    # What guests hold where their host was reshaped

    def misplaced(self) -> list[GuestRecord]:
        """Guests that hold, as far as is known here, what their host has not. Where placement has its tree as
        it is, it knows what they hold instead."""
        found = []
        for root in [one for one in self._to_fit if one in self._stored]:
            tree, guests = self._trees[root], self._disk.hosted.of(root)
            wrong = [one for one in guests if not fits_tree(one.allocations, tree, self._pools)]
            if not wrong:
                del self._to_fit[root]
            elif self._reshaping(root) is None:
                found += wrong
        return found

    def settle(self, guests: Iterable[GuestRecord], found: Iterable[Consumer]) -> None:
        """They hold what placement says; whoever is not named holds nothing any more, as he is to be gone."""
        held = {one.id: one.allocations for one in found}
        for guest in filter(self._disk.hosted.is_there, guests):
            tree = self._trees[guest.root]
            known = (held.get(keeper(guest.build, guest.attempt), {}), held.get(guest.build, {}))
            now: Allocations = next((one for one in known if any(map(tree.by_id, one))), {})
            if now == guest.allocations:  # then it is of somebody else: of a pool
                self._pools.update(dict.fromkeys(one for one in now if tree.by_id(one) is None))
                continue
            log.info("%s on %s: what it holds is of other providers", guest.build, guest.host)
            self._disk.move(guest, now)

    def _say_anew(self, root: str) -> None:
        host, stored = self._hosts[root], self._stored.get(root, ())
        tree = furnished(
            root, host.host, host.all_drivers, stored, self._devices.in_use, disabled=bool(host.disabled)
        )
        self._trees[root] = tree
        self._to_fit[root] = None
        moves = self._reshaping(root)
        self._devices.furnish(tree, {one.provider for one in moves.moves} if moves else ())

    def _taken(self, root: str, owner: Provider | None) -> bool:
        """Placement has our last report, if there was one."""
        told = self._told.get(root, -1)
        return told < 0 or (owner is not None and owner.sequence >= told)

    def _note_taken(self, host: SimHost, owner: Provider | None) -> None:
        """A report that placement refuses is a dead letter there: here it is one that never arrives."""
        if self._taken(host.root, owner):
            self._not_taken.pop(host.root, None)
            return
        often = self._not_taken[host.root] = self._not_taken.get(host.root, 0) + 1
        if often >= NOT_TAKEN_SO_OFTEN:
            log.error(
                "placement has taken none of the last %d reports of %s: `berth dead list` may say why",
                *(often, host.host),
            )


def _but_for_use(one: Provider) -> tuple[object, ...]:
    """What of a provider decides whether its host is reported."""
    owner = (one.cell, one.agent, one.zone, one.host, one.gone)
    kept = one.kept_classes, one.kept_traits, one.kept_aggregates
    return one.id, one.name, one.parent, one.inventories, one.traits, one.aggregates, owner, kept


def _of_owner(owner: Provider | None, host: SimHost, cell: str, agent: str) -> Iterable[str]:
    if owner is None:
        yield "placement does not know it"
    elif owner.gone:
        yield "placement has it as gone"
    elif (owner.cell, owner.agent, owner.zone, owner.host) != (cell, agent, host.zone, host.host):
        yield f"placement has it as {owner.host} of {owner.agent or 'nobody'} in {owner.cell or 'no cell'}"
