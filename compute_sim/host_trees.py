"""Holds the provider trees of an agent's hosts, and compares them with placement."""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from bus.claims import holder_consumer
from bus.reports import ProviderReport, Reshaping
from bus.resources import Consumer, Provider
from bus.vocabulary import Allocations
from compute_sim.core.device_book import fits_tree, reshaping
from compute_sim.core.drivers import build_tree
from compute_sim.core.provider_tree import ProviderTree, TreeProvider, answered, differences
from compute_sim.disk import AgentDisk
from compute_sim.guests import GuestRecord
from compute_sim.machines import SimAgent, SimHost

log = logging.getLogger(__name__)

MOST_IGNORED_REPORTS = 3  # after so many failed reports an error is logged
_COMPARED = (  # the fields of a provider that decide whether its host is reported again
    *("id", "name", "parent", "inventories", "traits", "aggregates", "cell", "agent", "zone", "host", "gone"),
    *("kept_classes", "kept_traits", "kept_aggregates"),
)


class HostTrees:
    """The provider trees of all hosts of an agent, without the bare-metal nodes of Ironic."""

    def __init__(self, agent: SimAgent, disk: AgentDisk) -> None:
        self.cell, self.agent = agent.cell, agent.agent
        self._hosts = {host.root: host for host in agent.hosts if not host.metal}
        self._disk = disk
        self._devices = disk.devices
        self._pools: dict[str, None] = {}  # providers of shared pools that guests use
        self._stored: dict[str, tuple[TreeProvider, ...]] = {}
        self._trees: dict[str, ProviderTree] = {}
        self._reported: dict[str, int] = {}  # root → sequence of its last report
        self._newest_taken = -1  # the highest sequence of this agent's reports in placement at the last check
        self._not_taken: dict[str, int] = {}  # root → consecutive checks in which placement lacked the report
        self._changed: dict[str, None] = {}
        self._alike: dict[str, list[Provider]] = {}  # root → placement's last answer that equalled the tree
        # roots with a changed tree or guests since the last check of allocations
        self._to_fit: dict[str, None] = {}
        self._follow_use = {
            root for root, host in self._hosts.items() if any(driver.follows_use for driver in host.drivers)
        }
        for root in self._hosts:
            self._rebuild_tree(root)

    @property
    def roots(self) -> Sequence[str]:
        return tuple(self._hosts)

    def report(self, root: str, sequence: int) -> tuple[tuple[ProviderReport, ...], Reshaping | None]:
        """Return a host's provider tree as report number `sequence`, and the reshape to report with it (None:
        no allocations move).
        """
        self._reported[root] = sequence
        self._changed.pop(root, None)
        return self._trees[root].report(), self._reshaping(root)

    def _reshaping(self, root: str) -> Reshaping | None:
        hosted = self._disk.hosted.of(root)
        guests = [((guest.build, guest.attempt), guest.allocations) for guest in hosted]
        return reshaping(self._stored.get(root, ()), self._trees[root], guests)

    def use_changed(self, root: str) -> None:
        """Record that a host's guests changed; rebuild the host's provider tree if one of its drivers derives
        inventories from the use of devices.
        """
        if root in self._hosts:
            self._to_fit[root] = None
        if root not in self._follow_use:
            return
        before = self._trees[root].report()
        self._rebuild_tree(root)
        if self._trees[root].report() != before:
            self._changed[root] = None

    @property
    def has_changed(self) -> bool:
        return bool(self._changed)

    def take_changed(self) -> list[str]:
        """Return the roots of hosts whose trees changed after the last call and were not reported since."""
        changed = list(self._changed)
        self._changed.clear()
        return changed

    def compare(
        self, providers: Iterable[Provider], owners: Mapping[str, Provider], read_at: Callable[[str], int]
    ) -> Iterator[tuple[str, bool]]:
        """Compare placement's `providers` with the hosts' trees; yield each host's root, and whether to
        report the host. `owners`: the hosts' root providers in placement, by id. Hosts reported with a
        sequence above `read_at(root)` are not compared: `providers` may be older than the report.
        """
        answers: dict[str, list[Provider]] = {}
        for provider in providers:
            answers.setdefault(provider.root, []).append(provider)
        coming = self._still_coming(owners)
        coming |= {root for root, sequence in self._reported.items() if sequence > read_at(root)}
        for root, host in self._hosts.items():
            yield root, root not in coming and self._differs(host, owners.get(root), answers.get(root, []))

    def _differs(self, host: SimHost, owner: Provider | None, answer: list[Provider]) -> bool:
        root = host.root
        alike = self._alike.get(root)
        matches = alike is not None and [*map(_but_for_use, alike)] == [*map(_but_for_use, answer)]
        if matches and self._was_applied(root, owner):
            return False
        self._alike.pop(root, None)
        first = root not in self._stored
        self._stored[root] = answered(answer).get(root, ())
        self._rebuild_tree(root)
        found = [*_of_owner(owner, host, self.cell, self.agent)]
        unpublished = first or not self._was_applied(root, owner)
        found += differences(self._stored[root], self._trees[root], closed_too=unpublished)
        if moves := self._reshaping(root):
            found.append(f"the allocations of {len(moves.guests)} guests are on other providers")
        if found:
            log.info("%s is reported: %s", host.host, "; ".join(found[:20]))
        elif root not in self._follow_use:
            tree = self._trees[root]
            has = {now.id: now.inventories.keys() for now in tree.providers}
            # If placement has classes that the tree lacks, their allocations may still have to move.
            if all(was.id in has and was.inventories.keys() <= has[was.id] for was in self._stored[root]):
                self._alike[root] = answer
        self._note_taken(host, owner)
        return bool(found)

    def _still_coming(self, owners: Mapping[str, Provider]) -> set[str]:
        # While placement applies reports, a repeated report would only wait behind the first report.
        us = (self.cell, self.agent)
        ours = [owner.sequence for owner in owners.values() if (owner.cell, owner.agent) == us]
        newest, before = max(ours, default=-1), self._newest_taken
        self._newest_taken = newest
        if newest <= before:
            return set()
        later = (root for root, sequence in self._reported.items() if sequence > newest)
        return {root for root in later if not self._was_applied(root, owners.get(root))}

    def misplaced(self) -> list[GuestRecord]:
        """Return guests with recorded allocations of providers or resource classes that their host's tree
        lacks, except guests on hosts with a pending reshape.
        """
        found = []
        for root in [root for root in self._to_fit if root in self._stored]:
            tree, guests = self._trees[root], self._disk.hosted.of(root)
            wrong = [guest for guest in guests if not fits_tree(guest.allocations, tree, self._pools)]
            if not wrong:
                del self._to_fit[root]
            elif self._reshaping(root) is None:
                found += wrong
        return found

    def settle(self, guests: Iterable[GuestRecord], found: Iterable[Consumer]) -> None:
        """Replace the recorded allocations of guests by the allocations of their consumers in placement,
        `found`; guests without allocations there get an empty record.
        """
        held = {consumer.id: consumer.allocations for consumer in found}
        for guest in filter(self._disk.hosted.is_there, guests):
            tree = self._trees[guest.root]
            known = (held.get(holder_consumer(guest.build, guest.attempt), {}), held.get(guest.build, {}))
            now: Allocations = next((held for held in known if any(map(tree.by_id, held))), {})
            if now == guest.allocations:  # so the provider that the tree lacks is a shared pool
                self._pools.update(dict.fromkeys(pool for pool in now if tree.by_id(pool) is None))
                continue
            log.info("%s on %s: its allocations belong to other providers", guest.build, guest.host)
            self._disk.move(guest, now)

    def _rebuild_tree(self, root: str) -> None:
        host, stored = self._hosts[root], self._stored.get(root, ())
        tree = build_tree(
            root, host.host, host.all_drivers, stored, self._devices.in_use, disabled=bool(host.disabled)
        )
        self._trees[root] = tree
        self._to_fit[root] = None
        moves = self._reshaping(root)
        self._devices.set_tree(tree, {move.provider for move in moves.moves} if moves else ())

    def _was_applied(self, root: str, owner: Provider | None) -> bool:
        sequence = self._reported.get(root, -1)
        return sequence < 0 or (owner is not None and owner.sequence >= sequence)

    def _note_taken(self, host: SimHost, owner: Provider | None) -> None:
        # Placement dead-letters a refused report, so the agent only finds the report missing.
        if self._was_applied(host.root, owner):
            self._not_taken.pop(host.root, None)
            return
        often = self._not_taken[host.root] = self._not_taken.get(host.root, 0) + 1
        if often >= MOST_IGNORED_REPORTS:
            text = "placement has accepted none of the last %d reports of %s: `berth dead list` may show why"
            log.error(text, often, host.host)


def _but_for_use(provider: Provider) -> tuple[object, ...]:
    return tuple(getattr(provider, name) for name in _COMPARED)


def _of_owner(owner: Provider | None, host: SimHost, cell: str, agent: str) -> Iterable[str]:
    if owner is None:
        yield "placement does not know it"
    elif owner.gone:
        yield "placement has it as deleted"
    elif owner.label_sources.reported != host.labels:
        yield f"placement has it with the labels {owner.label_sources.reported}, not {dict(host.labels)}"
    elif (owner.cell, owner.agent, owner.zone, owner.host) != (cell, agent, host.zone, host.host):
        yield f"placement has it as {owner.host} of {owner.agent or 'no agent'} in {owner.cell or 'no cell'}"
