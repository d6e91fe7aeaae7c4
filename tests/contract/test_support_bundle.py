"""`berth system bundle` and `berth doctor --upgrade` on a running berth, and without broker, database or
process.
"""

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from berth import __version__, composition
from berth.configuration import Effective
from berth.doctor import looking
from berth.features import packages
from berth.process_watch import WatchLimits, watched
from berth.settings import Settings
from berth.support import bundle as bundle_module
from berth.support import stores
from berth.support.bundle import collect
from bus.local import LocalTransport
from bus.sql.database import Database
from bus.sql.migrations import migrate
from tests.support.command_line import CommandLine
from tests.support.envelopes import a_letter
from tests.support.living_berth import opening_berths


def unpacked(path: Path) -> dict[str, str]:
    """Return the files of a bundle by their names in its folder."""
    assert path.stat().st_mode & 0o077 == 0
    with tarfile.open(path) as archive:
        read = {member.name: archive.extractfile(member) for member in archive.getmembers()}
        return {name.partition("/")[2]: file.read().decode() for name, file in read.items() if file}


async def test_a_bundle_of_a_running_berth_has_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bundle.tar.gz"
    async with opening_berths(tmp_path, monkeypatch, capsys)("c1", simulator={"hosts": 1}) as berth:
        transport = composition.transport(berth.settings, "test")
        assert isinstance(transport, LocalTransport)
        transport.broker.store_dead_letter(a_letter(body=b'{"image":"mine"}'))
        debug = CommandLine("system bundle", monkeypatch, capsys)
        with watched(WatchLimits(), "up", tmp_path):
            [made] = await debug.json("--output", str(path), "--seconds", "0.1")
            check = CommandLine("doctor", monkeypatch, capsys)
            checked = await check("--upgrade", ends=1)  # because of the dead letter
    files = unpacked(path)
    assert made == {"file": str(path), "files": sorted(files), "missing": []}
    [folder] = {name.rpartition("/")[0] for name in files if name.startswith("processes/")}
    assert {Path(name).name for name in files if name.startswith(folder)} == {
        "state.txt", "metrics.txt", "warnings.log", "stacks.folded",
    }  # fmt: skip
    assert "event loop: blocked for" in files[f"{folder}/state.txt"]
    assert "scheduler:build.requested" in files[f"{folder}/state.txt"]
    assert "# TYPE berth_placement_roots gauge" in files[f"{folder}/metrics.txt"]
    assert "MainThread" in files[f"{folder}/stacks.folded"]
    tables = {row["name"] for row in content(files, "databases/cell_c1.json")["tables"]}
    assert tables >= {"builds", "placed_builds"}
    assert [row["worker"] for row in content(files, "slow.json")]
    [letter] = content(files, "dead_letters.json")
    assert (letter["reason"], letter["body"]) == ("flavor: a name is missing", "16 bytes")
    assert any(found["about"] == "dead letters" for found in content(files, "doctor.json")["findings"])
    assert content(files, "settings.json")["settings"]["cells"]["value"] == ["c1"]
    assert content(files, "versions.json")["processes"][0]["name"] == "up"
    assert "Missing parts: none" in files["README.txt"]
    assert "database placement: All migrations are applied." in checked
    assert f"processes: Versions that run on this machine: {__version__} (1)." in checked


def content(files: dict[str, str], name: str) -> Any:
    return json.loads(files[name])


async def test_a_bundle_names_unavailable_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (bundle_module, looking):
        monkeypatch.setattr(module, "BROKER_SECONDS", 0.5)
    nowhere = "127.0.0.1:1"
    settings = Settings().having(
        amqp_url=f"amqp://berth:geheim@{nowhere}/", database_url=f"postgresql://berth:geheim@{nowhere}/berth",
        cells=("c1",), state_dir=str(tmp_path),
    )  # fmt: skip
    dead = tmp_path / "support/1.sock"
    dead.parent.mkdir()
    dead.touch()  # a plain file in place of the socket
    bundle = await collect(Effective(settings), seconds=0.0, directories=[tmp_path])
    assert {why.partition(":")[0] for why in bundle.missing} == {
        "process 1", "dead letters", "database placement", "database scheduler", "database cell_c1",
    }  # fmt: skip
    assert {"settings.json", "versions.json", "slow.json", "doctor.json", "README.txt"} == bundle.files.keys()
    findings = content(bundle.files, "doctor.json")["findings"]
    assert {"RabbitMQ berth@127.0.0.1:1", "database placement"} <= {found["about"] for found in findings}
    assert "geheim" not in "".join([*bundle.files.values(), *bundle.missing])
    assert all(why in bundle.files["README.txt"] for why in bundle.missing)


@pytest.mark.services
async def test_a_report_of_postgresql_has_sizes_and_open_transactions(database_url: str) -> None:
    database, other = (Database(database_url, namespace="cell_c1") for _ in range(2))
    try:
        await migrate(database, *packages("conductor"))
        async with other.read() as tx:
            await tx.fetch("SELECT count(*) FROM builds WHERE status = 'x'", [])
            report = await stores.report(database)
    finally:
        await database.close()
        await other.close()
    [builds] = [table for table in report["tables"] if table["name"] == "builds"]
    assert builds["bytes"] > 0
    assert [row["statement"] for row in report["active"]] == [
        "SELECT count(*) FROM builds WHERE status = '?'"
    ]
    assert report["slow_statements"] == "the extension pg_stat_statements is not installed"
