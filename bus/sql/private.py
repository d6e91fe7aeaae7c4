"""SQLite files that only their owner may read, whatever the umask was when they were made."""

from contextlib import suppress
from pathlib import Path

_BESIDE = ("", "-wal", "-shm", "-journal")  # SQLite makes the others with the permissions of the first


def keep_private(path: Path) -> None:
    """This file and what SQLite has laid beside it; one that is somebody else's stays as it is."""
    for suffix in _BESIDE:
        one = Path(f"{path}{suffix}")
        with suppress(FileNotFoundError, PermissionError):
            if one.stat().st_mode & 0o077:
                one.chmod(0o600)
