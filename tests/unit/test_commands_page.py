"""The page of all commands is what the command line has; what programs rely on; completion in shells."""

import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from berth import command_table
from berth.__main__ import app
from berth.commands import index

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"
BEGIN, END = "<!-- berth commands --markdown -->", "<!-- end of berth commands -->"
# A shell asks by the name that is typed.
AS_INSTALLED = "import sys; sys.argv[0] = 'berth'; from berth.__main__ import main; main()"
COMMANDS = dict(command_table.commands(app))

IN_WORDS = {"demo", "up", "run", "ironic sim", "completion"}


def test_the_page_is_what_the_command_line_has() -> None:
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    assert written.strip() == command_table.markdown(app).strip(), (
        f"{PAGE.name} is behind the code: put what `berth commands --markdown` prints between its marks"
    )


def first_paragraph(text: str) -> str:
    return " ".join(inspect.cleandoc(text).partition("\n\n")[0].split())


@pytest.mark.parametrize("listed", index.COMMANDS, ids=lambda listed: listed.name)
def test_the_index_says_what_the_command_says_of_itself(listed: index.Listed) -> None:
    loaded = index.Later(listed).loaded()
    assert listed.says == first_paragraph(loaded.help)
    assert loaded.name == listed.name


def test_the_index_has_every_command_of_the_files_that_it_names() -> None:
    for file in {listed.file for listed in index.COMMANDS}:
        around = typer.Typer()
        around.add_typer(import_module(f"berth.commands.{file}").commands)
        theirs = typer.main.get_group(around).commands
        assert set(theirs) == {listed.name for listed in index.COMMANDS if listed.file == file}


def test_help_and_a_list_of_names_load_no_command_and_nothing_that_only_commands_need() -> None:
    script = (
        "import sys; from berth.__main__ import app; app(['--help'], standalone_mode=False);"
        "print('loaded:', {'numpy', 'sqlalchemy', 'aio_pika', 'httpx', 'prometheus_client',"
        " 'berth.wiring', 'scheduler_worker'} & {*sys.modules})"
    )
    said = subprocess.run(
        [sys.executable, "-c", script], cwd=PAGE.parents[1], capture_output=True, text=True, check=True
    )
    assert said.stdout.rstrip().endswith("loaded: set()")


def test_every_command_that_ends_speaks_json() -> None:
    assert {name for name, command in COMMANDS.items() if not command_table.speaks_json(command)} == IN_WORDS


def test_documented_exit_codes_belong_to_existing_commands() -> None:
    assert set(command_table.ONE) <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_and_option_says_what_it_does(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    silent = [param.name for param in command.params if not getattr(param, "help", None)]
    assert silent == (["switch"] if name in ("ironic node maintenance", "ironic node power") else [])


LISTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "topology": (
        {"topic or query": "move.told.{cell}"},
        {
            "message": "MoveProgress",
            "from": "conductor, scheduler",
            "to": "control_room, the client",
            "wall": "out",
        },
    ),
    "metrics": ({"name": "berth_info"}, {"kind": "gauge", "labels": ["version"], "by": "every process"}),
    "commands": ({"command": "drain"}, {"json": True, "one": "something stays, and is named with why"}),
    "rules": ({"name": "up"}, {"on": True, "options": {}, "called": ["ComputeFilter"]}),
    "reasons": ({"code": "cell"}, {"of": "hosts", "says": "the host is in another cell"}),
    "http": ({"address": "/reshaper", "method": "POST"}, {"since": "1.30", "until": ""}),
}


@pytest.mark.parametrize("command", LISTS)
def test_lists_are_json_for_programs(command: str) -> None:
    which, says = LISTS[command]
    told = in_json(command)
    rows = told["filters"] if command == "rules" else told
    assert len(rows) > 10
    (row,) = [one for one in rows if which.items() <= one.items()]
    assert {name: row[name] for name in says} == says


def test_commands_that_print_one_document_print_it_as_json() -> None:
    settings = in_json("settings")["control_room_http"]
    assert (set(settings), settings["group"]) == ({"value", "from", "group"}, "control_room")
    described = in_json("asyncapi")
    assert {"channels", "operations", "components"} <= set(described)
    assert "MoveProgress" in described["components"]["schemas"]
    may = in_json("cell", "permissions", "c1")["permissions"]
    assert [(one["user"], one["vhost"]) for one in may] == [("berth-c1", "/")]


def test_a_migration_says_what_it_applied_and_then_that_it_was_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BERTH_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("BERTH_CELLS", "c1")
    applied = in_json("migrate")
    assert {one["store"] for one in applied} == {"placement", "cell_c1", "scheduler"}
    assert applied[0] == {"store": "placement", "applied": "0001_first"}
    assert in_json("migrate") == []


def in_json(*words: str) -> Any:
    ended = CliRunner().invoke(app, [*words, "--json"])
    assert ended.exit_code == 0, ended.output
    return json.loads(ended.stdout)


@pytest.mark.parametrize(
    ("shell", "mark"),
    [("bash", "complete -o default -F"), ("zsh", "#compdef berth"), ("fish", "complete --command berth")],
)
def test_shell_completion_is_printed(shell: str, mark: str) -> None:
    ended = CliRunner().invoke(app, ["completion", shell])
    assert ended.exit_code == 0
    assert mark in ended.stdout
    assert "_BERTH_COMPLETE" in ended.stdout


def test_bash_is_told_what_may_follow() -> None:
    asked = {"_BERTH_COMPLETE": "complete_bash", "COMP_WORDS": "berth dead re", "COMP_CWORD": "2"}
    said = subprocess.run(
        [sys.executable, "-c", AS_INSTALLED],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PAGE.parents[1]), **asked},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert said.stdout.split() == ["replay"], said.stderr
