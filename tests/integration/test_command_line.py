"""The command line for a new user: output, exit codes and errors."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.berth_processes import ROOT, Up, run_berth
from tests.support.snippets import a_command

pytestmark = pytest.mark.slow

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

Done = subprocess.CompletedProcess[str]


class User:
    def __init__(self, directory: Path) -> None:
        self.directory = directory
        around = {key: value for key, value in os.environ.items() if not key.startswith("BERTH_")}
        around.pop("COLUMNS", None)
        self.environment = {**around, "PYTHONPATH": str(Path(__file__).parents[2]), "NO_COLOR": "1"}

    def berth(self, *arguments: str, **variables: str) -> Done:
        return run_berth(arguments, self.directory, {**self.environment, **variables})


@pytest.fixture
def user(tmp_path: Path) -> User:
    return User(tmp_path)


def says(done: Done, code: int = 0) -> str:
    assert (done.returncode, done.stderr) == (code, ""), done.stdout
    return done.stdout


def complains(done: Done, code: int) -> str:
    """The one sentence on standard error."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr.strip()


def test_the_demo_boots_builds_and_audits(user: User) -> None:
    sent = says(user.berth("demo", "--boots", "60", "--hosts", "20", "--build-time", "constant:0"))
    lines = sent.splitlines()
    assert lines[0].startswith("berth demo: 60 boots of 20 flavors on 20 hosts in 4 cells, 10% failing on")
    assert re.search(r"^ +ended +60 active *$", sent, re.MULTILINE)
    assert re.search(r"^ +request to end, build included +p50 \d+ ms, .*p99 \d+ ms", sent, re.MULTILINE)
    assert re.search(
        # one build in ten fails on its first host, also on bare metal
        r"^bare metal: two nodes .* a build for one ended active: on demo-node-\d+, attempt [12]$",
        sent,
        re.MULTILINE,
    )
    assert lines[-3:-1] == [
        "audit: clean; 61 consumers hold resources; builds: 61 active",
        "  custom classes: CUSTOM_BAREMETAL 1 of 2 used",
    ]
    assert re.fullmatch(
        r"to inspect it: make demo ARGS=--stay keeps it running, and its control room is at http://127.0.0.1:\d+/",
        lines[-1],
    )
    assert list(user.directory.iterdir()) == []  # it leaves nothing behind


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("boot", "no berth answers at .berth/bus.sock"),
        ("run placement", "a separate worker needs a bus that other processes reach: set BERTH_AMQP_URL"),
        ("up --state-dir /dev/null/x", "/dev/null/x: Not a directory"),
    ],
)
def test_an_impossible_command_ends_with_one_sentence(user: User, arguments: str, sentence: str) -> None:
    assert complains(user.berth(*arguments.split()), code=1).startswith(sentence)
    assert list(user.directory.iterdir()) == []


def test_a_wrong_flag_is_named_with_the_way_to_help(user: User) -> None:
    done = user.berth("boot", "--colour", "red", COLUMNS="120")
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such option: --colour" in done.stderr
    assert "--help" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variables", "setting"),
    [
        ({"BERTH_AMQP_URL": "amqp://u@[::1],10.0.0.9/", "BERTH_DATABASE_URL": "postgresql://h/b"},
         "amqp_url"),
        ({"BERTH_DATABASE_URL": "postgresql://u:p@127.0.0.1/b?host=10.0.0.9"}, "database_url"),
        ({"BERTH_DATABASE_URL": "postgresql://[::1]/b", "BERTH_CELL_DATABASE_URLS": "c1=postgresql://10.0.0.9/b"},
         "cell_database_urls"),
    ],
)  # fmt: skip
def test_a_load_test_refuses_remote_addresses(user: User, variables: dict[str, str], setting: str) -> None:
    refused = user.berth("load", "--attach", **{"BERTH_AMQP_URL": "amqp://localhost/", **variables})
    assert complains(refused, 1) == f"{setting}: load tests aim at loopback only, and 10.0.0.9 is not"


PAGE = (ROOT / "docs" / "logs.md").read_text(encoding="utf-8")


def test_one_build_can_be_followed_in_the_logs(tmp_path: Path) -> None:
    a_command(tmp_path)
    (example,) = re.findall(r"<!-- tested -->\n```sh\n(.*?)```", PAGE, re.DOTALL)
    loud = {"BERTH_LOG_LEVEL": "debug", "BERTH_LOG_FORMAT": "json"}
    with Up(tmp_path, loud, "--hosts", "4", "--cells", "1", "--build-time", "constant:0") as berth:
        (tmp_path / "berth.log").symlink_to(berth.log_path)
        berth.environment["PATH"] = f"{tmp_path}:{berth.environment['PATH']}"
        found = berth.run("bash", "-euc", f'{example}\necho "{{\\"asked\\": \\"$build\\"}}"')
    assert found.returncode == 0, found.stderr
    *lines, asked = map(json.loads, found.stdout.splitlines())
    assert len({line["correlation"] for line in lines}) == 1, "they are one story"
    workers = [line["text"].partition(":")[0].partition(".")[0] for line in lines]
    assert set(workers) >= {"ask", "scheduler", "conductor", "agent"}
    assert all(asked["asked"] in line["build"] for line in lines)
