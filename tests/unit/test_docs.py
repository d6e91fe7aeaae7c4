"""docs/ and the README: generated parts are current, links and names exist, commands are tested."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from click import Group
from typer.main import get_command
from typer.testing import CliRunner

from berth import setting_table
from berth.__main__ import app
from bus.topics import QUERIES, TOPICS
from tests.support.snippets import PAGES, ROOT, snippets

DOCS = ROOT / "docs"
MADE = re.compile(r"<!-- berth (\w+) --markdown -->\n(.*?)<!-- end of berth \1 -->", re.DOTALL)
PLACES = [
    (page, command, text)
    for page in (ROOT / "ARCHITECTURE.md", *PAGES)
    for command, text in MADE.findall(page.read_text(encoding="utf-8"))
]
NOT_DONE = {
    "README.md": 1,
    "docs/adopting.md": 1,
    "docs/aggregates.md": 1,
    "docs/cells.md": 2,
    "docs/howto/cell.md": 2,
    "docs/howto/placement.md": 1,
    "docs/import.md": 1,
    "docs/ironic.md": 3,
    "docs/running.md": 2,
    "docs/traces.md": 1,
    "docs/tutorial.md": 1,
}

NOT_SETTINGS = {
    "cell_disabled",
    "compute_capabilities",
    "compute_sim",
    "database_connections",
    "ironic_",
    "conductor_group",
    "ironic_sync",
    "ironic_versioned_notifications",
    "token",
}


@pytest.mark.parametrize(("page", "command", "text"), PLACES, ids=[f"{p.stem}:{c}" for p, c, _ in PLACES])
def test_a_page_says_what_the_code_says(page: Path, command: str, text: str) -> None:
    told = CliRunner().invoke(app, [command, "--markdown"])
    assert told.exit_code == 0
    assert text.strip() == told.stdout.strip(), f"{page.name} is behind the code: run scripts/made-pages"


def test_the_references_are_made_by_the_code() -> None:
    made = {command for _, command, _ in PLACES}
    assert made == {"settings", "topology", "asyncapi", "rules", "http", "metrics", "reasons", "commands"}


def test_every_setting_says_what_it_means() -> None:
    assert [setting.name for setting in setting_table.settings_there_are() if not setting.says] == []


def test_every_page_is_in_the_navigation_once() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = _leaves(site["nav"])
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(named) == sorted([*pages, "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"])


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [leaf for part in (nav.values() if isinstance(nav, dict) else nav) for leaf in _leaves(part)]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md"], ids=lambda page: page.stem)
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://")):
            continue
        name, _, heading = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists(), f"{page.name}: {target}"
        if heading:
            assert heading in _headings(file), f"{page.name}: {target}"


def _headings(file: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_commands_without_a_test_have_a_reason_and_are_few() -> None:
    reasons: dict[str, list[str]] = {}
    for page in PAGES:
        for snippet in snippets(page):
            if "not run" in snippet.marks:
                reasons.setdefault(snippet.page, []).append(snippet.marks["not run"])
    assert {page: len(why) for page, why in reasons.items()} == NOT_DONE
    assert all(len(why) > 20 for several in reasons.values() for why in several)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_stand_in_blocks_that_a_test_does(page: Path) -> None:
    for snippet in snippets(page):
        if snippet.language not in ("sh", "python") and "prints" not in snippet.marks:
            assert not re.search(r"^\s*(\$ )?(berth|curl|make) ", snippet.text, re.MULTILINE), (
                f"{snippet}: not marked as sh"
            )
    outside = re.sub(
        r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE
    )
    assert not re.search(r"^    berth \w", outside, re.MULTILINE), "an indented block is done by nobody"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_data_blocks_can_be_read(page: Path) -> None:
    read = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}
    for snippet in snippets(page):
        if snippet.language in read:
            read[snippet.language](snippet.text)


def test_pictures_are_as_they_are_drawn() -> None:
    drawn = [sys.executable, str(ROOT / "scripts" / "draw-pictures"), "--check"]
    said = subprocess.run(drawn, capture_output=True, text=True, check=False)
    assert said.returncode == 0, said.stdout + said.stderr


TEXTS = [*PAGES, *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md"))]


def _names(page: Path, pattern: str) -> set[str]:
    """Return the matches of the pattern in inline code."""
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    return {match for code in re.findall(r"`([^`\n]+)`", text) for match in re.findall(pattern, code)}


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_named_files_exist(page: Path) -> None:
    named = _names(page, r"^[\w./-]+\.(?:py|md|toml|yml|json|conf|env)$")
    folders = (
        ROOT,
        page.parent,
        ROOT / "tests",
        ROOT / "tests" / "contract",
        ROOT / "compute_sim/core/drivers",
        ROOT / "deploy/prometheus",
    )
    given = {"berth.toml", "licences.py", "machines.toml", "mine/rules.py", "alerts.yml"}
    assert sorted(name for name in named - given if not any((base / name).exists() for base in folders)) == []


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_named_settings_exist(page: Path) -> None:
    settings = {setting.name for setting in setting_table.settings_there_are()}
    variables = {name.removesuffix("_FILE").lower() for name in _names(page, r"\bBERTH_([A-Z_]+)\b")}
    prefixes = "placement|scheduler|ironic|cell|cells|conductor|control_room|compute|metrics|database|amqp"
    named = _names(page, rf"^((?:{prefixes})_[a-z_]+)$")
    assert sorted((variables | named) - settings - NOT_SETTINGS) == []


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_named_commands_exist(page: Path) -> None:
    missing: list[str] = []
    for words in _names(page, r"^berth ((?:[a-z-]+ ?)+)"):
        command = get_command(app)
        for word in words.split():
            if not isinstance(command, Group):
                break
            if word not in command.commands:
                missing.append(words)
                break
            command = command.commands[word]
    assert sorted(missing) == []


@pytest.mark.parametrize("page", TEXTS, ids=lambda page: page.stem)
def test_named_topics_exist(page: Path) -> None:
    patterns = [topic.pattern for topic in TOPICS] + [query.name for query in QUERIES]
    known = {re.sub(r"\.\{\w+\}", "", pattern) for pattern in patterns}
    first = "|".join(sorted({name.split(".")[0] for name in known}))
    named = _names(page, rf"^(?:query )?((?:{first})\.[a-z_]+)(?:\.[\w<>{{}}.…-]+)?$")
    assert sorted(name for name in named if name not in known and name != "placement.query") == []


def test_each_latency_of_boots_states_whether_it_includes_the_build() -> None:
    page = (ROOT / "docs" / "performance.md").read_text(encoding="utf-8")
    rows = [
        line for line in page.splitlines() if line.startswith("|") and "p99" in line and "event" not in line
    ]
    assert len(rows) >= 4
    for row in rows:
        assert "including the build" in row or "take no time" in row, row
