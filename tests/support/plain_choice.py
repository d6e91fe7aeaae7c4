"""The best host by a slow search: every filter and weigher for every host."""

from collections.abc import Callable, Collection, Mapping, Sequence

from bus.candidates import CandidateSearch
from scheduler_worker import ChoicePolicy
from scheduler_worker.core.host_map import tie
from scheduler_worker.core.rule import Alternative, HostFacts, OneHost
from scheduler_worker.core.view import HostsNow


class PlainChoice:
    def __init__(
        self,
        alternative: Alternative,
        search: CandidateSearch,
        now: HostsNow,
        policy: ChoicePolicy,
        seed: str,
        *,
        fitting: Callable[[], Collection[str]]
        | None = None,  # the roots that have room, found in another way
        tiers: Mapping[str, int] | None = None,  # root → its tier; roots that are missing are in the first
    ) -> None:
        self.alternative = alternative
        self.fitting = fitting
        self.tiers = tiers or {}
        self.search = search
        self.now = now
        self.policy = policy
        self.seed = seed
        self.chosen: dict[str, int] = {}
        self.positions = search.positions.tolist()
        self.scales = self._scales([OneHost(now.facts(search, position)) for position in self.positions])

    def best(self) -> list[str]:
        """The roots that would do, best first."""
        keys = []
        fitting = None if self.fitting is None else self.fitting()
        for position in self.positions:
            facts = self.now.facts(self.search, position)
            fits = self.search.ways(position, 1) if fitting is None else facts.root in fitting
            if fits and self._admitted(facts):
                key = (
                    self.tiers.get(facts.root, 0),
                    -self._score(facts),
                    self.chosen.get(facts.root, 0),
                    tie(self.seed, facts.root),
                    facts.root,
                )
                keys.append(key)
        return [key[-1] for key in sorted(keys)]

    def choose(self, root: str) -> None:
        self.chosen[root] = self.chosen.get(root, 0) + 1

    def _admitted(self, facts: HostFacts) -> bool:
        if not facts.agent or not facts.cell:
            return False
        if self.policy.cells is not None and facts.cell not in self.policy.cells:
            return False
        return all(
            rule.refuses(facts, self.alternative) is None
            for rule in self.policy.rules
            if rule.concerns is None or rule.concerns(self.alternative)
        )

    def _scales(self, views: Sequence[OneHost]) -> list[tuple[float, float] | None]:
        scales: list[tuple[float, float] | None] = []
        for weigher in self.policy.weighers:
            values = [float(weigher.value(view, self.alternative)) for view in views]
            if not values or min(values) == max(values):
                scales.append(None)
                continue
            lowest = min(values) if weigher.lowest is None else weigher.lowest
            highest = max(values)
            scales.append((lowest, max(highest, lowest + weigher.least_span)) if highest > lowest else None)
        return scales

    def _score(self, facts: HostFacts) -> float:
        view, score = OneHost(facts), 0.0
        for weigher, scale in zip(self.policy.weighers, self.scales, strict=True):
            if scale is None:
                continue
            lowest, highest = scale
            value = float(weigher.value(view, self.alternative))
            if weigher.lowest is not None:
                value = max(value, lowest)
            key = weigher.key or f"{weigher.name}_weight_multiplier"
            multiplier = view.override(key, weigher.multiplier)
            score += (value - lowest) / (highest - lowest) * multiplier
        near = self.policy.near
        return float(round(score / near)) if near else score
