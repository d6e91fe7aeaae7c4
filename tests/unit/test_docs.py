"""docs/, the README and the pages of features: generated parts are current, names exist, commands run."""

import ast
import inspect
import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml  # type: ignore[import-untyped]
from click import Group
from typer.main import get_command
from typer.testing import CliRunner

from berth import command_table, message_pages, reference_tables, setting_tables
from berth.__main__ import app
from berth.commands import index
from berth.kit.choice_policies import choice_policy
from berth.settings import BadSetting, Settings
from berth.worker_roles import WORKERS
from bus.topics import QUERIES, TOPICS
from tests.support.snippets import PAGES, ROOT, snippets

DOCS = ROOT / "docs"


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


MADE = re.compile(r"<!-- berth ([\w ]+) --markdown -->\n(.*?)<!-- end of berth \1 -->", re.DOTALL)
PLACES = [
    (page, command, text)
    for page in (ROOT / "ARCHITECTURE.md", *PAGES)
    for command, text in MADE.findall(page.read_text(encoding="utf-8"))
]
NOT_SETTINGS = {
    "cell_disabled",
    "compute_capabilities",
    "config",  # BERTH_CONFIG names a file
    "compute_sim",
    "database_connections",
    "ironic_",
    "conductor_group",
    "ironic_sync",
    "ironic_versioned_notifications",
    "token",
    # options of Nova
    "amqp_durable_queues",
    "cell_mappings",
    "database_connection",
    # an exchange of Nova, and a queue bound to it
    "scheduler_fanout",
    "scheduler_fanout_berth",
    "simulator_name",  # a placeholder
    "placement_aggregate_required_for_tenants",
}


@pytest.mark.parametrize(("page", "command", "text"), PLACES, ids=[f"{named(p)}:{c}" for p, c, _ in PLACES])
def test_generated_pages_equal_the_code(page: Path, command: str, text: str) -> None:
    sent = CliRunner().invoke(app, [*command.split(), "--markdown"])
    assert sent.exit_code == 0
    assert text.strip() == sent.stdout.strip(), f"{page.name} is behind the code: run scripts/made-pages"


def test_the_references_are_made_by_the_code() -> None:
    pages = {f"reference asyncapi {page}" for page in (*message_pages.subjects(), message_pages.TYPES)}
    made = {command for _, command, _ in PLACES}
    assert pages <= made
    without_pages = {command for command in made if not command.startswith("reference asyncapi ")}
    assert without_pages == {
        "policy list", "reference settings", "reference settings simulator", "reference topology",
        "reference asyncapi", "reference http", "reference metrics", "reference reasons",
        "reference commands", "reference roles", "reference features",
    }  # fmt: skip


def test_every_page_is_in_the_navigation_once() -> None:
    site = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    named = _leaves(site["nav"])
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    pages += [str(page.relative_to(ROOT)) for page in ROOT.glob("features/*/*.md")]
    assert sorted(named) == sorted([*pages, "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"])


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [leaf for part in (nav.values() if isinstance(nav, dict) else nav) for leaf in _leaves(part)]


def without_blocks(page: Path) -> str:
    return re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def test_links_lead_to_files_and_headings_that_are_there() -> None:
    for page in [*PAGES, ROOT / "ARCHITECTURE.md"]:
        for target in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
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
    every = [snippet for page in PAGES for snippet in snippets(page)]
    reasons = [snippet.marks["not run"] for snippet in every if "not run" in snippet.marks]
    assert len(reasons) <= 26
    assert all(len(reason) > 20 for reason in reasons)


def test_commands_stand_in_blocks_that_a_test_does() -> None:
    for page in PAGES:
        for snippet in snippets(page):
            if snippet.language not in ("sh", "python") and "prints" not in snippet.marks:
                assert not re.search(r"^\s*(\$ )?(berth|curl|make) ", snippet.text, re.MULTILINE), (
                    f"{snippet}: not marked as sh"
                )
        indented = re.search(r"^    berth \w", without_blocks(page), re.MULTILINE)
        assert not indented, f"{page}: no test runs an indented block"


def test_data_blocks_can_be_read() -> None:
    read = {"toml": tomllib.loads, "json": json.loads, "yaml": yaml.safe_load}
    for page in PAGES:
        for snippet in snippets(page):
            if snippet.language in read:
                read[snippet.language](snippet.text)


PACKAGES = sorted(path.parent for path in ROOT.glob("*/__init__.py"))
READMES = [
    path / "README.md"
    for path in (*PACKAGES, ROOT / "bus/rabbit/fast_channels")
    if (path / "README.md").exists()
]
TEXTS = [*PAGES, *READMES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]


def _names(page: Path, pattern: str) -> set[str]:
    """Return the matches of the pattern in inline code."""
    inline = re.findall(r"`([^`\n]+)`", without_blocks(page))
    return {match for code in inline for match in re.findall(pattern, code)}


def test_named_files_exist() -> None:
    given = {
        "berth.toml", "licences.py", "folders.py", "machines.toml", "mine/rules.py", "mine/warm.py",
        "alerts.yml", "/berth/openapi.json", "/audit.json",  # addresses
    }  # fmt: skip
    parts = ("settings", "versions", "doctor", "databases/STORE", "dead_letters", "slow")
    given |= {f"{name}.json" for name in parts}  # of a support bundle
    for page in TEXTS:
        named = _names(page, r"^[\w.*-][\w./*-]*(?:\.(?:py|md|toml|yml|json|conf|env))$")
        named |= _names(page, r"^[\w.*]+(?:/[\w.*]+)*/$") if page.name == "README.md" else set()
        tests = ROOT / "tests"
        folders = (
            ROOT,
            page.parent,
            tests,
            tests / "contract",
            ROOT / "compute_sim/core/drivers",
            ROOT / "berth/service_files/prometheus",
            *ROOT.glob("features/*"),
            *ROOT.glob("features/*/tests"),
        )
        for name in named - given:
            assert any(any(base.glob(name)) for base in folders), f"{page}: {name}"


def test_named_settings_exist() -> None:
    settings = {setting.name for setting in setting_tables.settings_there_are()}
    settings |= {f"simulator_{option.name}" for option in setting_tables.simulator_options()}
    for page in TEXTS:
        assert _named_settings(page) - settings - NOT_SETTINGS == set(), page


def _named_settings(page: Path) -> set[str]:
    variables = {name.removesuffix("_FILE").lower() for name in _names(page, r"\bBERTH_([A-Z_]+)\b")}
    prefixes = "placement|scheduler|ironic|cell|cells|conductor|control_room|compute|metrics|database|amqp"
    named = _names(page, rf"^((?:{prefixes})_[a-z_]+)$")
    named |= {f"simulator_{name}" for name in _names(page, r"\bsimulator\.([a-z_]+)\b") - {"toml"}}
    return variables | named


def test_named_commands_exist() -> None:
    every = get_command(app)
    for page in TEXTS:
        for words in _names(page, r"^berth ((?:[a-z-]+ ?)+)"):
            command = every
            for word in words.split():
                if not isinstance(command, Group):
                    break
                assert word in command.commands, f"{page}: {words}"
                command = command.commands[word]


def test_named_topics_exist() -> None:
    patterns = [topic.pattern for topic in TOPICS] + [query.name for query in QUERIES]
    known = {re.sub(r"\.\{\w+\}", "", pattern) for pattern in patterns}
    first = "|".join(sorted({name.split(".")[0] for name in known}))
    known |= {"placement.query", "nova.scheduler"}
    for page in TEXTS:
        named = _names(page, rf"^(?:query )?((?:{first})\.(?!py$)[a-z_]+)(?:\.[\w<>{{}}.…-]+)?$")
        assert named <= known, page


# A shell asks by the name that is typed.
AS_INSTALLED = "import sys; sys.argv[0] = 'berth'; from berth.__main__ import main; main()"
COMMANDS = dict(command_table.commands(app))

IN_WORDS = {"demo", "up", "run", "ironic sim", "system completion"}


def first_paragraph(text: str) -> str:
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())


def test_the_command_index_equals_the_commands_help() -> None:
    for listed in index.COMMANDS:
        loaded = index.Later(listed).loaded()
        assert listed.says == first_paragraph(loaded.help)
        assert loaded.name == listed.name


def test_the_index_has_every_command_of_the_files_that_it_names() -> None:
    for module in {listed.module for listed in index.COMMANDS if listed.module}:
        around = typer.Typer()
        around.add_typer(import_module(module).commands)
        theirs = typer.main.get_group(around).commands
        assert set(theirs) == {listed.name for listed in index.COMMANDS if listed.module == module}


def test_the_help_fits_into_a_terminal_explains_the_first_commands_and_names_all() -> None:
    printed = CliRunner().invoke(app, ["--help"]).output
    lines = printed.splitlines()
    assert len(lines) <= 40 and max(map(len, lines)) <= 81
    named = set(re.findall(r"[a-z-]+", printed))
    top = [listed.path for listed in index.COMMANDS if " " not in listed.path]
    assert named >= {*top}
    explained = [line.split()[0] for line in lines[5 : 5 + len(index.FIRST)]]
    assert explained == [*index.FIRST]


def test_an_operator_learns_at_most_25_words_at_the_top_level_ten_of_them_first() -> None:
    assert len([listed for listed in index.COMMANDS if " " not in listed.path]) <= 25
    assert len(index.FIRST) == 10


def test_every_group_is_described() -> None:
    assert [listed.path for listed in index.COMMANDS if not listed.says] == []
    paths = {listed.path for listed in index.COMMANDS}
    assert {parent for path in paths if (parent := path.rpartition(" ")[0])} <= paths


def test_commands_are_found_by_a_text() -> None:
    found = CliRunner().invoke(app, ["reference", "commands", "evacuat", "--json"]).output
    assert "host evacuate" in {row["command"] for row in json.loads(found)}
    assert "boot" not in {row["command"] for row in json.loads(found)}


def test_help_and_a_list_of_names_load_no_command_and_nothing_that_only_commands_need() -> None:
    script = (
        "import sys; from berth.__main__ import app; app(['--help'], standalone_mode=False);"
        "print('loaded:', {'numpy', 'sqlalchemy', 'aio_pika', 'httpx', 'prometheus_client',"
        " 'berth.composition', 'scheduler_worker'} & {*sys.modules})"
    )
    reply = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert reply.stdout.rstrip().endswith("loaded: set()")


@pytest.mark.parametrize("command", ["boot", "delete", "load"])
def test_a_command_loads_the_parser_of_the_scheduler_only_when_it_runs(command: str) -> None:
    script = (
        f"import sys; from berth.__main__ import app; app(['{command}', '--help'], standalone_mode=False);"
        "print('loaded:', {'numpy', 'scheduler_worker'} & {*sys.modules})"
    )
    reply = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert reply.stdout.rstrip().endswith("loaded: set()")


def test_every_finite_command_has_json_output() -> None:
    assert {name for name, command in COMMANDS.items() if not command_table.speaks_json(command)} == IN_WORDS


def test_every_command_and_option_has_help() -> None:
    for name, command in COMMANDS.items():
        assert command.help, name
        silent = [param.name for param in command.params if not getattr(param, "help", None)]
        assert silent == [], name


def test_the_help_of_run_names_every_worker() -> None:
    [workers] = [param for param in COMMANDS["run"].params if param.name == "workers"]
    words = getattr(workers, "help", "").rstrip(".").replace(" or ", ", ").split(", ")
    assert tuple(words) == WORKERS


@pytest.mark.parametrize(
    ("command", "row"),
    [
        (
            "reference topology",
            {"topic or query": "build.ended.{cell}", "message": "BuildEnded", "crosses": "out"},
        ),
        (
            "reference metrics",
            {"name": "berth_info", "kind": "gauge", "labels": ["version"], "by": "every process"},
        ),
        ("reference commands", {"command": "boot", "json": True}),
        ("policy list", {"name": "up", "on": True, "options": {}, "called": ["ComputeFilter"]}),
        ("reference reasons", {"code": "cell", "of": "hosts", "says": "the host is in another cell"}),
        ("reference http", {"address": "/reshaper", "method": "POST", "since": "1.30", "until": ""}),
    ],
)
def test_lists_are_json_for_programs(command: str, row: dict[str, Any]) -> None:
    listed = in_json(*command.split())
    rows = listed["filters"] if command == "policy list" else listed
    assert len(rows) > 5
    assert len([one for one in rows if row.items() <= one.items()]) == 1


def test_commands_that_print_one_document_print_it_as_json() -> None:
    settings = in_json("reference", "settings")["control_room_http"]
    assert (set(settings), settings["group"]) == ({"value", "from", "group"}, "control_room")
    assert in_json("reference", "settings", "control_room_http") == {"control_room_http": settings}
    described = in_json("reference", "asyncapi")
    assert {"channels", "operations", "components"} <= set(described)
    assert "BuildEnded" in described["components"]["schemas"]
    assert "MoveEnded" not in in_json("reference", "asyncapi", "build")["components"]["messages"]
    may = in_json("cell", "permissions", "c1")["permissions"]
    assert [(one["user"], one["vhost"]) for one in may] == [("berth-c1", "/")]


def test_migrate_prints_the_applied_migrations(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTH_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("BERTH_CELLS", "c1")
    applied = in_json("system", "migrate")
    assert {one["store"] for one in applied} == {"placement", "cell_c1", "scheduler"}
    assert applied[0] == {"store": "placement", "applied": "0001_first"}
    assert in_json("system", "migrate") == []


def in_json(*words: str) -> Any:
    ended = CliRunner().invoke(app, [*words, "--json"])
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


@pytest.mark.parametrize(
    ("shell", "mark"),
    [("bash", "complete -o default -F"), ("zsh", "#compdef berth"), ("fish", "complete --command berth")],
)
def test_shell_completion_is_printed(shell: str, mark: str) -> None:
    ended = CliRunner().invoke(app, ["system", "completion", shell])
    assert ended.exit_code == 0
    assert mark in ended.stdout
    assert "_BERTH_COMPLETE" in ended.stdout


@pytest.mark.parametrize(("words", "completed"), [("host dr", "drain"), ("run plac", "placement")])
def test_bash_completion_lists_subcommands_and_values(words: str, completed: str) -> None:
    asked = {"_BERTH_COMPLETE": "complete_bash", "COMP_WORDS": f"berth {words}", "COMP_CWORD": "2"}
    reply = subprocess.run(
        [sys.executable, "-c", AS_INSTALLED],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert reply.stdout.split() == [completed], reply.stderr


def test_custom_functions_are_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "my_rules.py").write_text(
        'def calm(host, wish):\n    """It is calm."""\n\n\n'
        "def size(host, wish):\n    return 1.0\n\n\n"
        "def broken():\n    return 7\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    settings = Settings().having(
        scheduler_filters=("my_rules:calm",), scheduler_weighers={"my_rules:size": 2.0}
    )
    assert reference_tables.filters(settings)[0].says == "It is calm."
    assert reference_tables.weighers(settings)[0].multiplier == 2.0
    added = Settings().having(
        scheduler_filters=("+my_rules:calm",), scheduler_weighers={"+my_rules:size": 2.0}
    )
    shown = {row.name: row for row in (*reference_tables.filters(added), *reference_tables.weighers(added))}
    assert all(shown[name].on for name in ("my_rules:calm", "my_rules:size", "zone", "load"))
    with pytest.raises(
        BadSetting, match=r"scheduler_filters = .*: 'my_rules:broken' makes a int, not a Rule"
    ):
        choice_policy(Settings().having(scheduler_filters=("my_rules:broken",)))
    with pytest.raises(BadSetting, match="there is no function 'none' in 'my_rules'"):
        choice_policy(Settings().having(scheduler_filters=("my_rules:none",)))


def test_all_packages_are_listed() -> None:
    listed = (ROOT / "ARCHITECTURE.md").read_text().split("```")[1]
    assert [package.name for package in PACKAGES if f"{package.name}/" not in listed] == []


def test_an_import_contract_covers_every_module_of_bus() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    covered = {module for contract in contracts for module in contract.get("source_modules", ())}
    modules = {f"bus.{path.stem}" for path in (ROOT / "bus").glob("*.py")} - {"bus.__init__"}
    assert modules <= covered


def test_no_public_class_has_the_name_of_another() -> None:
    where = defaultdict(list)
    for path in sorted(file for folder in [*PACKAGES, ROOT / "tests"] for file in folder.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(str(path.relative_to(ROOT)))
    assert len(where) > 300  # they were found at all
    assert {name: paths for name, paths in where.items() if len(paths) > 1} == {}
