"""SQLite files that only their owner may read, whatever the umask was when they were made."""

from contextlib import suppress
from pathlib import Path

# SQLite creates the companion files with the permissions of the first
_BESIDE = ("", "-wal", "-shm", "-journal")


def make_private(path: Path) -> None:
    """Make the file and SQLite's companion files private; files of other users stay unchanged."""
    for suffix in _BESIDE:
        one = Path(f"{path}{suffix}")
        with suppress(FileNotFoundError, PermissionError):
            if one.stat().st_mode & 0o077:
                one.chmod(0o600)
