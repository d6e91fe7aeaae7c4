"""The settings file of one cell: its secrets alone, for its owner alone, and what else was written stays."""

import stat
import tomllib
from pathlib import Path

import pytest

from berth.cell_file import CellFile, as_user, password_of, read_cell_file, vhost_of, write_cell_file
from berth.configuration import read
from berth.settings import BadSetting, Settings

OURS = Settings().having(
    amqp_url="amqp://admin:all@mq/v", exchange="e2", database_url="postgresql://o:o@db/b"
)
HAS = CellFile("amqp://e2-c9:one@mq/v", "postgresql://b_c9:two@db/b_c9")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_it_holds_what_the_cells_workers_need_and_nobody_elses_secrets(tmp_path: Path) -> None:
    path = tmp_path / "c9.toml"
    assert read_cell_file(path, "c9") is None
    assert write_cell_file(path, "c9", OURS, HAS)
    assert mode(path) == 0o600 and [path.name for path in tmp_path.iterdir()] == ["c9.toml"]
    text = path.read_text()
    assert "all@" not in text and "o:o@" not in text
    settings = read(file=path, environment={}).settings
    assert (settings.cell_names, settings.bus.exchange) == (("c9",), "e2")
    assert settings.cell("c9").broker == HAS.broker and settings.cell("c9").database == HAS.database
    assert read_cell_file(path, "c9") == HAS


def test_written_again_it_stays_as_it_is_but_for_what_is_otherwise(tmp_path: Path) -> None:
    path = tmp_path / "c9.toml"
    write_cell_file(path, "c9", OURS, HAS)
    path.write_text("hosts = 7\n" + path.read_text() + "[scheduler_weighers]\ncpu = 2.0\n")
    path.chmod(0o644)
    assert not write_cell_file(path, "c9", OURS, HAS)
    assert mode(path) == 0o600
    other = CellFile("amqp://e2-c9:\\1new@mq/v", HAS.database)  # nothing in it means anything to a pattern
    assert write_cell_file(path, "c9", OURS, other)
    told = tomllib.loads(path.read_text())
    assert (told["hosts"], told["amqp_url"], told["scheduler_weighers"]) == (7, other.broker, {"cpu": 2.0})
    path.write_text('cells = ["c9"]\n[cells_of_others]\n')
    write_cell_file(path, "c9", OURS, HAS)
    assert tomllib.loads(path.read_text())["database_url"] == HAS.database


@pytest.mark.parametrize(
    "text", ['cells = ["c1"]', 'cells = ["c9", "c1"]', "amqp_url = 'amqp://x/'", "cells = ["]
)
def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c9.toml"
    path.write_text(text)
    with pytest.raises(BadSetting, match=r"c9.toml"):
        read_cell_file(path, "c9")


@pytest.mark.parametrize(
    ("url", "user", "password", "path", "made"),
    [
        ("amqp://guest:guest@mq:5672/v?heartbeat=9", "b-c9", "p/w@", None, "amqp://b-c9:p%2Fw%40@mq:5672/v?heartbeat=9"),
        ("amqp://mq/", "b-c9", "x", None, "amqp://b-c9:x@mq/"),
        ("postgresql+asyncpg://a@db:1/berth", "berth_c9", "x", "/berth_c9", "postgresql+asyncpg://berth_c9:x@db:1/berth_c9"),
    ],
)  # fmt: skip
def test_the_same_place_for_another_user(
    url: str, user: str, password: str, path: str | None, made: str
) -> None:
    assert as_user(url, user, password, path) == made
    assert password_of(made, user) == password and password_of(made, "somebody") == ""


def test_virtual_hosts() -> None:
    urls = ("amqp://mq", "amqp://mq/", "amqp://mq/v", "amqp://mq/%2Fv")
    assert [vhost_of(url) for url in urls] == ["/", "/", "v", "/v"]
