"""Disables hosts for a cause, enables them, and marks them as forced down."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from msgspec import structs

from berth.kit.hosts import host_named
from berth.settings import BadSetting
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.host_health import DISABLED, FORCED_DOWN, HELD, UNNAMED, causes_in, closed_for, opened_for
from bus.names import MakeName, NameEditRequested
from bus.resources import Edited, EditRequested, Provider, SetTraits, Stale

if TYPE_CHECKING:  # it loads metrics
    from bus.delivery.recording import RecordingBus

_TRIES = 8


_CAUSE = re.compile(r"[a-z0-9_]{1,64}")


class Marked(NamedTuple):
    """The state of a host after an operator disabled, enabled or forced it down."""

    host: Provider
    says: str  # its new state, or why it did not change

    @property
    def is_disabled(self) -> bool:
        """Return whether the host has the trait with which operators exclude it from new builds."""
        return DISABLED in self.host.traits


_Traits = Callable[[Provider], set[str]]


@dataclass(frozen=True)
class Marking:
    """An act that marks a host by traits of its root: `wanted` returns its traits afterwards.

    `made`: returns marks that must exist in placement first. `refusal`: returns why a host stays as it is.
    """

    wanted: _Traits
    made: Callable[[Provider], Iterable[str]] = lambda root: ()
    refusal: Callable[[Provider], str] = lambda root: ""

    async def __call__(self, bus: Bus, root: Provider) -> Marked:
        """Mark a host, and return its new state."""
        if why := self.refusal(root):
            return Marked(root, why)
        for trait in self.made(root):
            await bus.asker(topics.EDIT_NAME)(NameEditRequested(kind="trait", edit=MakeName(name=trait)))
        return await _edited(bus, root, self.wanted)

    async def rehearsed(self, bus: RecordingBus, root: Provider) -> Marked:
        """Return the state that a host would have; raise OperationRefused if the caller may not mark it."""
        if why := self.refusal(root):
            return Marked(root, why)
        traits = self.wanted(root)
        await bus.rehearse(EditRequested(edit=_edit(root, traits)))
        if traits == {*root.traits}:
            return Marked(root, f"is so already ({state_of(root)})")
        kept = traits & {*root.kept_traits} | traits - {*root.traits}
        then = structs.replace(root, traits=tuple(sorted(traits)), kept_traits=tuple(sorted(kept)))
        return Marked(then, f"would be {state_of(then)}")


def state_of(root: Provider) -> str:
    """Return a host's state, such as `disabled` or `open`, according to the traits of its root provider."""
    if root.gone:
        return "gone"
    states = []
    if FORCED_DOWN in root.traits:
        states.append("forced down")
    if DISABLED in root.traits:
        states.append("disabled" if DISABLED in root.kept_traits else "disabled by its agent")
    if causes := causes_of(root):
        states.append(f"because of {' and '.join(causes)}")
    return ", ".join(states) or "open"


def causes_of(root: Provider) -> list[str]:
    """Return the names of the causes for which operators have disabled a host."""
    return causes_in(root.traits)


def checked_cause(given: str) -> str:
    """Return the cause of a mark in its stored form; raise BadSetting if it is no name."""
    cause = given.lower().replace("-", "_")
    if given and not _CAUSE.fullmatch(cause):
        raise BadSetting(f"--because {given!r}: a name of letters, digits and _")
    return cause


def disabling(cause: str) -> Marking:
    """Return the act that disables a host for a cause such as `drain`; "" is a cause without a name."""

    def made(root: Provider) -> Iterable[str]:
        return map(_held, filter(None, (cause, UNNAMED if cause or causes_of(root) else "")))

    return Marking(lambda now: closed_for(cause, now.traits, now.kept_traits), made)


def enabling(cause: str) -> Marking:
    """Return the act that removes a cause ("": the one without a name) from a disabled host, and enables the
    host if no cause is left.
    """

    def refusal(root: Provider) -> str:
        if DISABLED in root.traits and DISABLED not in root.kept_traits and not causes_of(root):
            return "its agent has disabled it: only that can undo it"
        if (rest := causes_of(root)) and (cause or UNNAMED) not in rest:
            word = rest[0] if len(rest) == 1 else "WORD"
            return f"stays disabled because of {' and '.join(rest)}: `--because {word}` removes that cause"
        return ""

    return Marking(lambda now: opened_for(cause, now.traits, now.kept_traits), refusal=refusal)


def forcing_down(down: bool) -> Marking:
    """Return the act that marks a host as forced down, or that removes the mark."""
    if not down:
        return Marking(lambda now: {*now.traits} - {FORCED_DOWN})
    return Marking(lambda now: {*now.traits, FORCED_DOWN}, lambda root: (FORCED_DOWN,))


def _held(cause: str) -> str:
    return f"{HELD}{cause.upper()}"


def _edit(root: Provider, traits: set[str]) -> SetTraits:
    return SetTraits(provider=root.id, traits=tuple(sorted(traits)), generation=root.generation)


async def _edited(bus: Bus, root: Provider, wanted: _Traits) -> Marked:
    for _ in range(_TRIES):
        traits = wanted(root)
        if traits == {*root.traits}:
            return Marked(root, f"is so already ({state_of(root)})")
        result = (await bus.asker(topics.EDIT)(EditRequested(edit=_edit(root, traits)))).result
        root = await host_named(bus, root.id)
        if isinstance(result, Edited):
            return Marked(root, state_of(root))
        if not isinstance(result, Stale):
            raise OperationRefused(f"{root.name}: {result}")
    raise OperationRefused(f"{root.name}: other processes keep changing it; try again")
