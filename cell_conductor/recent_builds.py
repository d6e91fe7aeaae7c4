"""A cache of builds that wait for messages, as last stored."""

from cell_conductor.core.build import Build

MOST = 4096  # of one cell; a build is about 10 kB
_WAITING = frozenset(["building", "swapping", "deleting"])


class RecentBuilds:
    """The cached builds.

    Another replica may have changed a build since: a result counts only if it was stored over the cached
    version.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._builds: dict[str, Build] = {}  # the one stored longest ago first

    def get(self, id_: str) -> Build | None:
        return self._builds.get(id_)

    def put(self, build: Build) -> None:
        """Cache the build as stored; a settled build is removed."""
        self._builds.pop(build.id, None)
        if build.status in _WAITING:
            self._builds[build.id] = build
            if len(self._builds) > self._most:
                del self._builds[next(iter(self._builds))]

    def forget(self, id_: str) -> None:
        self._builds.pop(id_, None)

    def clear(self) -> None:
        self._builds.clear()

    def __len__(self) -> int:
        return len(self._builds)
