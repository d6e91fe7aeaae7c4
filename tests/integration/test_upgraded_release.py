"""The databases of each release since 0.2.0 migrate to the present version, and berth continues with them."""

from pathlib import Path

import pytest
from rich.console import Console

from berth.commands.run import migrate_all, ready
from berth.operations.audit import audit
from berth.services import embedded
from tests.support.open_berth import OpenBerth
from tests.support.recorded_release import recordings, restore, schema, settings_of

RECORDED = recordings()


def test_the_first_release_with_migrations_is_recorded() -> None:
    assert "0.2.0" in RECORDED


@pytest.mark.slow
@pytest.mark.parametrize("version", RECORDED)
async def test_migrated_databases_have_the_schema_of_new_ones(version: str, tmp_path: Path) -> None:
    """If the first migration of a package was changed: from release 0.2.0 on, write a further migration
    instead. Until that release, run `scripts/record-release-state 0.2.0`.
    """
    former, new = tmp_path / "former", tmp_path / "new"
    for directory in (former, new):
        directory.mkdir()
    restore(RECORDED[version], former)
    await migrate_all(settings_of(former), Console(quiet=True))
    await migrate_all(settings_of(new), Console(quiet=True))
    migrated = schema(former)
    missing = {file: made - migrated[file] for file, made in schema(new).items() if made - migrated[file]}
    assert missing == {}


@pytest.mark.slow
@pytest.mark.parametrize("version", RECORDED)
async def test_berth_boots_after_the_upgrade_and_the_audit_is_clean(version: str, tmp_path: Path) -> None:
    restore(RECORDED[version], tmp_path)
    settings = settings_of(tmp_path)
    await migrate_all(settings, Console(quiet=True))
    before = await audit(settings)
    assert before.breaches == [] and before.builds["active"] >= 12
    async with embedded(settings) as berth:
        await ready(berth.bus, settings)
        ended = await OpenBerth("", berth.bus, settings).boot(3)
        assert [build.status for build in ended] == ["active"] * 3
    after = await audit(settings)
    assert after.breaches == [] and after.builds["active"] >= before.builds["active"] + 3
