"""Waiting requests whose claims a rule refused, such as a quota. They are tried again after a commit that has
the key of the refusal (RuleRefused.wakes_on).

Such requests are in no queue of an equivalence class, so they reserve no host and delay no other project.
Only the first request of each project and equivalence class is tried; after its success, the next.
"""

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass, field

from bus.vocabulary import Id
from features.waiting.core.shares import QueueKey

REMEMBERED = 10_000  # keys for which the last wake is stored

_Of = tuple[str, str]  # project, equivalence class


@dataclass(eq=False)
class RuleWaits:
    """The requests that wait for commits, in order, by project and equivalence class."""

    mark: int = 0  # number of wakes so far
    _held: dict[_Of, list[QueueKey]] = field(default_factory=dict)
    _of: dict[Id, _Of] = field(default_factory=dict)  # waiting request → its project and equivalence class
    _trying: dict[Id, _Of] = field(default_factory=dict)  # the same, for woken requests not placed yet
    _keys: dict[_Of, str] = field(default_factory=dict)  # the key for which each of them waits
    _woken_at: dict[str, int] = field(default_factory=dict)  # key → mark of its last wake

    def __len__(self) -> int:
        return len(self._of)

    def __contains__(self, request: Id) -> bool:
        return request in self._of

    def holds(self, project: str, kind: str) -> bool:
        """Return whether requests of the project and equivalence class wait here."""
        return (project, kind) in self._held

    def first(self, project: str, kind: str) -> Id | None:
        """Return the first request of a project and class that a rule refuses; None if there is none."""
        held = self._held.get((project, kind))
        return held[0][-1] if held else None

    def position(self, key: QueueKey) -> int:
        """Return the position (from 1) of a request that waits here among equal requests of its project."""
        return bisect_left(self._held[self._of[key[-1]]], key) + 1

    def woken_since(self, wakes_on: str, mark: int) -> bool:
        """Return whether a commit has woken one of the keys since the mark, so that a retry may succeed."""
        return any(self._woken_at.get(key, 0) > mark for key in _woken_by(wakes_on))

    def hold(self, key: QueueKey, project: str, kind: str, wakes_on: str) -> None:
        """Let a request wait until `wake` is called with the key `wakes_on`."""
        *_, request = key
        if request not in self._of:
            self._trying.pop(request, None)
            self._of[request] = project, kind
            self._keys[project, kind] = wakes_on
            insort(self._held.setdefault((project, kind), []), key)

    def wake(self, keys: Collection[str]) -> list[Id]:
        """Release and return the first request of each project and equivalence class that waits for one of
        the keys. A key that ends with a colon stands for all keys that begin with it, and "" for all keys.
        """
        self.mark += 1
        self._woken_at.update(dict.fromkeys(keys, self.mark))
        if len(self._woken_at) > REMEMBERED:
            self._woken_at = {"": self.mark}
        return [
            self._release(of) for of in list(self._held) if not _woken_by(self._keys[of]).isdisjoint(keys)
        ]

    def lift(self, project: str, kind: str) -> list[Id]:
        """Release and return all equal requests of a project: not the quota keeps them from a host now."""
        held = self._held.pop((project, kind), [])
        for *_, request in held:
            del self._of[request]
        return [request for *_, request in held]

    def leave(self, request: Id) -> Id | None:
        """Forget a request that was placed or has ended; return the next request to try in its place, or
        None.
        """
        of = self._of.pop(request, None)
        if of is not None:
            held = self._held[of]
            held[:] = [key for key in held if key[-1] != request]
            if not held:
                del self._held[of]
            return None
        of = self._trying.pop(request, None)
        return self._release(of) if of in self._held else None

    def _release(self, of: _Of) -> Id:
        held = self._held[of]
        *_, request = held.pop(0)
        if not held:
            del self._held[of]
        del self._of[request]
        self._trying[request] = of
        return request


def _woken_by(wakes_on: str) -> frozenset[str]:
    """Return the keys that wake requests which wait for the key `wakes_on`."""
    return frozenset(("", f"{wakes_on.partition(':')[0]}:", wakes_on))
