"""`berth init` and `berth system man`: settings files, service files, manual pages."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from berth import layouts
from berth.__main__ import app
from berth.configuration import read
from berth.settings import KINDS, Settings


def init(*words: str) -> None:
    ended = CliRunner().invoke(app, ["init", *words], catch_exceptions=False)
    assert ended.exit_code == 0, ended.output


def test_a_settings_file_has_every_setting_with_its_default(tmp_path: Path) -> None:
    text = layouts.settings_file({})
    assert read(environment={}, file=_written(tmp_path, text)).settings == Settings()
    every = re.sub(r"^#(?=\w+ = )", "", text, flags=re.M)
    found = read(environment={}, file=_written(tmp_path, every))
    assert found.settings == Settings()
    assert found.origins.keys() == {name for name in KINDS if not name.startswith("simulator.")}


def test_a_settings_file_has_the_chosen_values(tmp_path: Path) -> None:
    init(str(tmp_path), "--cells", "north,south")
    found = read(environment={}, file=tmp_path / "berth.toml")
    assert (found.settings.cell_names, set(found.origins)) == (("north", "south"), {"cells"})
    assert (tmp_path / "berth.toml").stat().st_mode & 0o777 == 0o600


def _written(folder: Path, text: str) -> Path:
    file = folder / "written.toml"
    file.write_text(text)
    return file


def test_units_start_the_program_and_each_worker_has_a_metrics_port(tmp_path: Path) -> None:
    init(str(tmp_path), "--layout", "systemd", "--cells", "c1,c2", "--program", "/srv/berth/bin/berth")
    units = [path.read_text() for path in (tmp_path / "etc/systemd/system").iterdir()]
    assert len(units) == 4
    assert all("\nExecStart=/srv/berth/bin/berth " in unit for unit in units)
    files = [path.read_text() for path in (tmp_path / "etc/berth").glob("*.env")]
    ports = {
        port for text in files for port in re.findall(r"^BERTH_METRICS_HTTP=127.0.0.1:(\d+)$", text, re.M)
    }
    share = tmp_path / "usr/local/share"
    scraped = re.findall(r"127\.0\.0\.1:(\d+)", (share / "berth/prometheus.yml").read_text())
    assert len(ports) == 6 and ports == {*scraped} - {"15692"}
    assert "_BERTH_COMPLETE" in (share / "bash-completion/completions/berth").read_text()
    assert (share / "man/man1/berth-cell-create.1").exists() and (share / "man/man5/berth.toml.5").exists()


def test_an_edited_file_stays_and_the_new_text_is_written_next_to_it(tmp_path: Path) -> None:
    init(str(tmp_path))
    init(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["berth.toml"]
    (tmp_path / "berth.toml").write_text('cells = ["mine"]\n')
    init(str(tmp_path))
    assert (tmp_path / "berth.toml").read_text() == 'cells = ["mine"]\n'
    assert "#amqp_url" in (tmp_path / "berth.toml.new").read_text()


def test_manifests_have_a_conductor_for_each_cell(tmp_path: Path) -> None:
    init(str(tmp_path), "--layout", "kubernetes", "--cells", "north,south")
    text = "".join(path.read_text() for path in tmp_path.iterdir())
    assert len(re.findall("kind: Deployment", text)) == 4
    assert "BERTH_CELLS: north,south\n" in text and "berth-cell-south" in text and "--cell, c1" not in text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--layout", "docker"), "it is up, systemd or kubernetes"),
        (("--cells", "North"), "lower-case letters"),
        (("--layout", "kubernetes", "--cells", "c_1"), "names of Kubernetes objects have no _"),
        (("--layout", "systemd", "--cells", "scheduler"), "names of others"),
    ],
)
def test_unusable_words_are_refused_and_nothing_is_written(
    words: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    ended = CliRunner().invoke(app, ["init", str(tmp_path / "new"), *words])
    assert why in str(ended.exception)
    assert not (tmp_path / "new").exists()
