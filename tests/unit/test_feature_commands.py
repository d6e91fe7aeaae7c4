"""Commands of features that a berth does not have: the command line says to which feature they belong."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth.__main__ import app
from berth.commands import feature_commands
from berth.features import features


@pytest.fixture(autouse=True)
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The table of a release that had the features `tides` and `harbour`."""
    table = tmp_path / "commands.txt"
    table.write_text("ebb\ttides\nhost flood\ttides\nhost moor\ttides harbour\n")
    monkeypatch.setattr(feature_commands, "TABLE", table)
    return table


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["ebb"], "`berth ebb` belongs to the feature tides, and this berth has no tides"),
        (["ebb", "--help"], "`berth ebb` belongs to the feature tides, and this berth has no tides"),
        (
            ["host", "flood", "h1"],
            "`berth host flood` belongs to the feature tides, and this berth has no tides",
        ),
        (["host", "drown"], "No such command 'drown'"),
        (["drown"], "No such command 'drown'"),
    ],
)
def test_a_command_of_a_missing_feature_is_refused_with_the_feature(words: list[str], says: str) -> None:
    ran = CliRunner(env={"COLUMNS": "200"}).invoke(app, words)
    assert ran.exit_code == 2
    assert says in " ".join(ran.output.replace("│", " ").split())


def test_a_command_of_a_join_names_the_joined_feature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feature_commands, "FEATURES", ("tides",))
    assert feature_commands.missing_features("host moor") == (
        "`berth host moor` belongs to the feature tides with harbour, and this berth has no harbour"
    )


def test_a_command_of_a_listed_feature_is_not_refused(recorded: Path) -> None:
    recorded.write_text("ebb\ttides\n")
    assert feature_commands.missing_features("host list") == ""


def test_the_table_keeps_the_commands_of_missing_features() -> None:
    assert "ebb\ttides\n" in feature_commands.table()


def test_the_table_has_the_commands_of_all_listed_features(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    assert feature_commands.TABLE.read_text() == feature_commands.table(), "run scripts/made-pages"
    for feature in features():
        assert feature.commands.keys() <= feature_commands.recorded().keys()
