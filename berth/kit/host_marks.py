"""Disables hosts for a cause, enables them, and marks them as forced down."""

import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from berth.kit.hosts import host_named
from berth.settings import BadSetting
from bus import topics
from bus.delivery.runner import Bus
from bus.errors import OperationRefused
from bus.host_health import DISABLED, FORCED_DOWN, HELD, UNNAMED, causes_in, closed_for, opened_for
from bus.names import MakeName, NameEditRequested
from bus.resources import Edited, EditRequested, Provider, SetTraits, Stale

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


Marking = Callable[[Bus, Provider], Awaitable[Marked]]  # marks a root


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
    """Return a function that disables a host for a cause such as `drain`; "" is a cause without a name."""

    async def disable(bus: Bus, root: Provider) -> Marked:
        for name in filter(None, (cause, UNNAMED if cause or causes_of(root) else "")):
            await _make(bus, _held(name))
        return await _edited(bus, root, lambda now: closed_for(cause, now.traits, now.kept_traits))

    return disable


def enabling(cause: str) -> Marking:
    """Return a function that removes a cause ("": the one without a name) from a disabled host, and enables
    the host if no cause is left.
    """

    async def enable(bus: Bus, root: Provider) -> Marked:
        if DISABLED in root.traits and DISABLED not in root.kept_traits and not causes_of(root):
            return Marked(root, "its agent has disabled it: only that can undo it")
        if (rest := causes_of(root)) and (cause or UNNAMED) not in rest:
            word = rest[0] if len(rest) == 1 else "WORD"
            says = f"stays disabled because of {' and '.join(rest)}: `--because {word}` removes that cause"
            return Marked(root, says)
        return await _edited(bus, root, lambda now: opened_for(cause, now.traits, now.kept_traits))

    return enable


def forcing_down(down: bool) -> Marking:
    """Return a function that marks a host as forced down, or that removes the mark."""

    async def force_down(bus: Bus, root: Provider) -> Marked:
        if down:
            await _make(bus, FORCED_DOWN)
        return await _edited(
            bus, root, lambda now: {*now.traits, FORCED_DOWN} if down else {*now.traits} - {FORCED_DOWN}
        )

    return force_down


def _held(cause: str) -> str:
    return f"{HELD}{cause.upper()}"


async def _make(bus: Bus, trait: str) -> None:
    """Create a trait in placement if it does not exist yet."""
    await bus.asker(topics.EDIT_NAME)(NameEditRequested(kind="trait", edit=MakeName(name=trait)))


async def _edited(bus: Bus, root: Provider, wanted: Callable[[Provider], set[str]]) -> Marked:
    for _ in range(_TRIES):
        traits = wanted(root)
        if traits == {*root.traits}:
            return Marked(root, f"is so already ({state_of(root)})")
        edit = SetTraits(provider=root.id, traits=tuple(sorted(traits)), generation=root.generation)
        result = (await bus.asker(topics.EDIT)(EditRequested(edit=edit))).result
        root = await host_named(bus, root.id)
        if isinstance(result, Edited):
            return Marked(root, state_of(root))
        if not isinstance(result, Stale):
            raise OperationRefused(f"{root.name}: {result}")
    raise OperationRefused(f"{root.name}: other processes keep changing it; try again")
