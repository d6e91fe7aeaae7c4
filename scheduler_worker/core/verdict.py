"""What became of the hosts that are not handed out: which rule refused how many, and who came closest."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np

from bus.candidates import Bools, Ints
from bus.decisions import NearMiss, Removal
from scheduler_worker.core.found_hosts import FoundHosts
from scheduler_worker.core.host_map import NO_AGENT
from scheduler_worker.core.rule import Rule
from scheduler_worker.core.shortage import EXAMPLES, NEAREST, NO_ROOM_NOW, running
from scheduler_worker.core.wish import Wish

Mask = tuple[Rule, Bools]
Refusal = tuple[Rule, str]


class Verdicts:
    """The rules that are asked for all at once count first, then those that are asked host by host."""

    def __init__(
        self,
        wish: Wish,
        served: Bools,
        masks: Sequence[Mask],
        lazy: Sequence[Rule],
        found: FoundHosts,
    ) -> None:
        self._wish = wish
        self._served = served
        self._masks = masks
        self._lazy = lazy
        self._found = found
        self._at_once: list[tuple[Removal, Rule | None, Ints]] | None = None

    def removals(self, refused: Mapping[int, Refusal], full: Iterable[int], left: int) -> tuple[Removal, ...]:
        """Of so many that placement left."""
        removals = [removal for removal, *_ in self._removed_at_once()]
        by_rule: dict[str, list[int]] = {}
        codes = {}
        for index, (rule, _) in refused.items():
            by_rule.setdefault(rule.name, []).append(index)
            codes[rule.name] = rule.code or rule.name
        removals += [self._removal(name, codes[name], indices) for name, indices in by_rule.items()]
        removals.append(self._removal(NO_ROOM_NOW, "chosen", list(full)))
        return tuple(running(left, removals))

    def nearest(
        self, refused: Mapping[int, Refusal], full: Iterable[int], beyond: Iterable[NearMiss]
    ) -> tuple[NearMiss, ...]:
        """Those that came furthest first."""
        return tuple(islice(self._misses(refused, full, beyond), NEAREST))

    def may_pass(self, refused: Mapping[int, Refusal]) -> bool:
        """Is anybody refused by nothing but what passes by itself?"""
        lasting = [rule for rule in self._lazy if not rule.passes]
        for index, (rule, _) in refused.items():
            if rule.passes and self._none_refuses(lasting, index):
                return True
        if not any(rule.passes for rule, _ in self._masks):
            return False
        strict, admitted = self._served.copy(), self._served.copy()
        for rule, mask in self._masks:
            admitted &= mask
            if not rule.passes:
                strict &= mask
        return any(
            self._none_refuses(lasting, index) for index in np.flatnonzero(strict & ~admitted).tolist()
        )

    def _none_refuses(self, rules: Sequence[Rule], index: int) -> bool:
        return all(rule.refuses(self._found.facts(index), self._wish) is None for rule in rules)

    def _misses(
        self, refused: Mapping[int, Refusal], full: Iterable[int], beyond: Iterable[NearMiss]
    ) -> Iterable[NearMiss]:
        for index in full:
            yield NearMiss(
                host=self._found.name(index), lacks="room: chosen by others a moment ago", code="chosen"
            )
        for asked in reversed(self._lazy):
            for index, (rule, why) in islice(refused.items(), 50 * NEAREST):
                if rule is asked:
                    yield NearMiss(host=self._found.name(index), lacks=why, code=rule.code or rule.name)
        for _, removed_by, indices in reversed(self._removed_at_once()):
            for index in indices[:NEAREST].tolist():
                if removed_by is None:
                    yield NearMiss(
                        host=self._found.name(index), lacks=self._found.nobody_builds(index), code=NO_AGENT
                    )
                    continue
                lacks = removed_by.refuses(self._found.facts(index), self._wish) or removed_by.name
                yield NearMiss(
                    host=self._found.name(index), lacks=lacks, code=removed_by.code or removed_by.name
                )
        yield from beyond

    def _removed_at_once(self) -> list[tuple[Removal, Rule | None, Ints]]:
        if self._at_once is None:
            left = self._served.copy()
            gone = np.flatnonzero(~left)
            self._at_once = [(self._removal(NO_AGENT, NO_AGENT, gone), None, gone)]
            for rule, mask in self._masks:
                gone = np.flatnonzero(left > mask)
                if gone.size:
                    left &= mask
                    removal = self._removal(rule.name, rule.code or rule.name, gone)
                    self._at_once.append((removal, rule, gone))
        return self._at_once

    def _removal(self, constraint: str, code: str, indices: Sequence[int] | Ints) -> Removal:
        hosts = tuple([self._found.name(int(index)) for index in indices[:EXAMPLES]])
        return Removal(constraint=constraint, removed=len(indices), left=0, code=code, hosts=hosts)
