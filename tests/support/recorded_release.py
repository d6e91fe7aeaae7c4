"""The databases of a filled berth, as a release wrote them: SQL texts in an archive of tests/data.

An archive is written while its release is made, and never changed after it: later versions must migrate it.
"""

import gzip
import io
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

from berth.settings import Settings
from tests.support.open_berth import an_open_berth
from tests.support.simulated_ironic import a_served_ironic
from tests.support.snippets import ROOT

HOSTS = 6  # in each cell
SUFFIXES = (".db", ".guests")  # the databases of workers and of the embedded bus, and the guests of agents


def recordings() -> dict[str, Path]:
    """Return the archive of each recorded release by version."""
    found = sorted((ROOT / "tests/data").glob("release-*.tar.gz"))
    return {path.name.removeprefix("release-").removesuffix(".tar.gz"): path for path in found}


def settings_of(directory: Path) -> Settings:
    """Return the settings of a berth that continues in a directory with a restored recording."""
    simulator = {"hosts": HOSTS, "build_time": "constant:0.01", "seed": 3, "labels": {"rack": 5}}
    return Settings().having(state_dir=str(directory), cells=("c1", "c2"), simulator=simulator)


async def record(archive: Path, directory: Path) -> None:
    """Fill a berth in an empty directory with an object for each page; write its databases to an archive."""
    async with a_served_ironic() as ironic, an_open_berth(directory, ironic, HOSTS):
        pass
    with gzip.GzipFile(archive, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for file in sorted(path for path in directory.iterdir() if path.suffix in SUFFIXES):
            with closing(sqlite3.connect(file)) as database:
                text = "\n".join(database.iterdump()).encode()
            member = tarfile.TarInfo(f"{file.name}.sql")
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text))


def restore(archive: Path, directory: Path) -> None:
    """Make the databases of an archive in an empty directory."""
    with tarfile.open(archive) as tar:
        for member in tar:
            text = tar.extractfile(member)
            assert text is not None
            with closing(sqlite3.connect(directory / member.name.removesuffix(".sql"))) as database:
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(text.read().decode())


def schema(directory: Path) -> dict[str, set[str]]:
    """Return the statements that make the tables and indexes of each worker's database, by file."""
    found = {}
    for file in sorted(directory.glob("*.db")):
        with closing(sqlite3.connect(file)) as database:
            rows = database.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")
            found[file.name] = {" ".join(sql.replace('"', "").split()) for (sql,) in rows}
    return found
