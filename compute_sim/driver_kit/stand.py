"""Runs tests on an operator's driver of a hypervisor or a host's hardware, with two hosts and guests that
exist only for the tests."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal
from uuid import UUID, uuid5

from bus.clock import Clock
from bus.messages import BuildOrdered, DestroyOrdered
from bus.requests import BuildSpec, Flavor, Image
from bus.vocabulary import Allocations
from compute_sim.core.drivers import Driver, build_tree
from compute_sim.core.provider_tree import ProviderTree
from compute_sim.driven_guests import DrivenGuests
from compute_sim.guest_driver import DriverGuest, GuestDriver
from compute_sim.guests import GuestRecord

CELL, AGENT = "check", "check-agent"
_HOSTS = UUID("2d0f7f2e-4f3b-4d0e-8a53-6a5b8f1c9e10")  # namespace of the roots of the two hosts


class RuleBroken(Exception):
    """Error: a driver under test broke a rule for drivers; the text has the expected and actual result."""


@dataclass(frozen=True)
class RuleResult:
    """The result of one test of an operator's driver of a hypervisor or a host's hardware."""

    part: str  # inventory, guests, agent, or the name of a feature
    rule: str
    outcome: Literal["passed", "failed", "skipped"]
    reason: str = ""


@dataclass
class DriverStand:
    """A driver of a hypervisor or hardware under test, with two hosts and the guests that tests create."""

    make: Callable[[], Driver]  # constructs the driver, as a starting agent does
    hosts: tuple[str, str] = ("check-1", "check-2")
    timeout: float = 60.0  # seconds for each rule
    flavor: Flavor = field(default_factory=lambda: Flavor(name="check", vcpus=1, memory_mb=64, disk_gb=0))
    image: str = ""
    clock: Clock = field(default_factory=Clock)

    def __post_init__(self) -> None:
        self.driver = self.make()
        self.roots = tuple(str(uuid5(_HOSTS, host)) for host in self.hosts)
        self._made: list[GuestRecord] = []

    @property
    def runs_guests(self) -> bool:
        return isinstance(self.driver, GuestDriver)

    @property
    def guest_driver(self) -> GuestDriver:
        assert isinstance(self.driver, GuestDriver)
        return self.driver

    @property
    def driven(self) -> DrivenGuests:
        return DrivenGuests(dict.fromkeys(self.roots, self.guest_driver))

    @property
    def spec(self) -> BuildSpec:
        image = Image(name=self.image) if self.image else None
        return BuildSpec(flavor=self.flavor, image=image, name="berth-agent-check")

    def tree(self, number: int = 0) -> ProviderTree:
        """Return the provider tree that the driver reports for a host."""
        return build_tree(self.roots[number], self.hosts[number], (self.driver,))

    def restart(self) -> None:
        """Replace the driver under test by a new object of its class, as a restart of the agent does."""
        self.driver = self.make()

    def new_build(self) -> str:
        return self.clock.uuid()

    def guest(self, build: str = "", attempt: int = 1, host: int = 0) -> GuestRecord:
        """Return the record of a new guest on one of the two hosts, 0 or 1. The guest is destroyed at the end
        of the test.
        """
        guest = GuestRecord(
            **self.address(build or self.new_build(), attempt, host), allocations=self.allocations(host)
        )
        self._made.append(guest)
        return guest

    def address(self, build: str, attempt: int, host: int = 0) -> dict[str, Any]:
        """Return the fields by which orders name a guest and its agent."""
        return {
            "build": build,
            "attempt": attempt,
            "cell": CELL,
            "agent": AGENT,
            "root": self.roots[host],
            "host": self.hosts[host],
        }

    def allocations(self, host: int = 0) -> Allocations:
        """Return the allocations that a guest of the tests' flavor needs on one of the two hosts, 0 or 1."""
        figures = {
            "VCPU": self.flavor.vcpus,
            "MEMORY_MB": self.flavor.memory_mb,
            "DISK_GB": self.flavor.disk_gb,
        }
        found: dict[str, dict[str, int]] = {}
        for class_, amount in figures.items():
            providers = [each for each in self.tree(host).providers if class_ in each.inventories]
            if amount and providers:
                found.setdefault(providers[0].id, {})[class_] = amount
        return found

    def build_order(self, build: str) -> BuildOrdered:
        """Return an order to build a guest of the tested flavor."""
        self.guest(build)
        return BuildOrdered(**self.address(build, 1), spec=self.spec, allocations=self.allocations())

    def destroy_order(self, build: str, attempt: int = 1) -> DestroyOrdered:
        return DestroyOrdered(**self.address(build, attempt))

    async def listed(self, build: str) -> list[DriverGuest]:
        """Return the guests of a build that the hypervisor driver lists, sorted by host and attempt."""
        found = [guest for guest in await self.guest_driver.guests() if guest.build == build]
        return sorted(found, key=lambda guest: (self.roots.index(guest.root), guest.attempt))

    async def expect(self, build: str, *expected: tuple[int, int, str]) -> None:
        """Raise RuleBroken unless the build has exactly the given guests: (host index, attempt, state)."""
        listed = await self.listed(build)
        found = [(self.roots.index(guest.root), guest.attempt, guest.state) for guest in listed]
        if sorted(found) != sorted(expected):
            raise RuleBroken(f"expected {self._text(expected)}; guests() returns {self._text(found)}")

    def _text(self, guests: Sequence[tuple[int, int, str]]) -> str:
        texts = [
            f"attempt {attempt} {state} on {self.hosts[host]}" for host, attempt, state in sorted(guests)
        ]
        return ", ".join(texts) or "no guest"

    async def clean_up(self) -> str:
        """Destroy all guests that the last test created; return why this failed, or ""."""
        made, self._made = self._made, []
        why = ""
        for guest in made:
            try:
                async with asyncio.timeout(self.timeout):
                    await self.guest_driver.destroy(guest)
            except Exception as problem:  # an operator's code may raise anything
                why = f"destroy after the rule failed: {type(problem).__name__}: {problem}"
        return why


Rule = Callable[[DriverStand], Awaitable[None]]


async def check_driver(
    stand: DriverStand, of_features: Mapping[str, Sequence[Rule]] = MappingProxyType({})
) -> Sequence[RuleResult]:
    """Run the tests on an operator's driver of a hypervisor or a host's hardware; return all results.
    `of_features`: further rules, by the name of the feature.
    """
    from compute_sim.driver_kit.rules import RULES

    results = []
    rules = [*RULES.items(), *of_features.items()]
    for part, rule in ((part, rule) for part, several in rules for rule in several):
        name = (rule.__doc__ or "").strip().rstrip(".")
        if part != "inventory" and not stand.runs_guests:
            results.append(RuleResult(part, name, "skipped", "the driver runs no guests"))
        else:
            why = await _broken(stand, rule)
            results.append(RuleResult(part, name, "failed" if why else "passed", why))
    return results


async def _broken(stand: DriverStand, rule: Rule) -> str:
    why = ""
    try:
        async with asyncio.timeout(stand.timeout) as limit:
            await rule(stand)
    except RuleBroken as broken:
        why = str(broken)
    except Exception as problem:  # an operator's code may raise anything
        why = f"{type(problem).__name__}: {problem}"
        if limit.expired():
            why = f"not ended within {stand.timeout:g} s"
    if stand.runs_guests:
        why = why or await stand.clean_up()
    return why
