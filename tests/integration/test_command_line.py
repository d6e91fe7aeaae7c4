"""The command line for a new user: output, exit codes and errors."""

import json
import os
import re
import signal
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from berth.commands import index
from tests.support.berth_processes import ROOT, Up, run_berth
from tests.support.snippets import a_command

pytestmark = pytest.mark.slow

UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
NOWHERE = {
    "BERTH_AMQP_URL": "amqp://user:geheim@10.1.2.3/",
    "BERTH_DATABASE_URL": "postgresql://user:geheim@127.0.0.1/berth",
}

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


@pytest.fixture(scope="module")
def berth(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """One embedded berth for all tests that only use it."""
    flags = ("--hosts", "20", "--cells", "2", "--build-time", "constant:0")
    with Up(tmp_path_factory.mktemp("berth"), {"BERTH_CELLS": "c1,c2"}, *flags) as up:
        yield up


def says(done: Done, code: int = 0) -> str:
    assert (done.returncode, done.stderr) == (code, ""), done.stdout
    return done.stdout


def complains(done: Done, code: int) -> str:
    """The one sentence on standard error."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr.strip()


# Help


def test_help_has_a_long_and_a_short_option(user: User) -> None:
    sent = says(user.berth("boot", "--help"))
    assert "Publish a build request" in sent
    assert says(user.berth("boot", "-h")) == sent


def test_berth_without_a_command_lists_all_commands(user: User) -> None:
    done = user.berth()
    assert all(f" {listed.name} " in done.stdout + done.stderr for listed in index.COMMANDS)


def test_berth_prints_its_version(user: User) -> None:
    assert re.fullmatch(r"berth \d+\.\d+\.\d+\n", says(user.berth("--version")))


# The demo


def test_the_demo_boots_builds_and_audits(user: User) -> None:
    sent = says(user.berth("demo", "--boots", "60", "--hosts", "20", "--build-time", "constant:0"))
    lines = sent.splitlines()
    assert lines[0].startswith("berth demo: 60 boots of 20 flavors on 20 hosts in 4 cells, 10% failing on")
    assert re.search(r"^ +ended +60 active *$", sent, re.MULTILINE)
    assert re.search(r"^ +request to end, build included +p50 \d+ ms, .*p99 \d+ ms", sent, re.MULTILINE)
    assert re.search(
        r"^bare metal: two nodes .* a build for one ended active: on " + UUID, sent, re.MULTILINE
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


def test_the_demo_stays_up_on_request(user: User) -> None:
    command = [sys.executable, "-m", "berth", "demo", "--stay", "--boots", "20", "--hosts", "20"]
    command += ["--build-time", "constant:0", "--fail", "0", "--control-room", "127.0.0.1:0"]
    with subprocess.Popen(
        command, cwd=user.directory, env=user.environment, stdout=subprocess.PIPE, text=True
    ) as demo:
        try:
            assert demo.stdout is not None
            sent = []
            for line in demo.stdout:
                sent.append(line)
                if line.startswith("running until Ctrl-C: the control room is at "):
                    break
            assert any("audit: clean" in line for line in sent)
            whole = httpx.URL(sent[-1].split()[-1], params={"wait": "1"})  # however long it takes to be made
            page = httpx.get(whole, headers={"accept": "text/html"}, timeout=60).text
            assert "of 21</small>" in page  # 20 boots and one of bare metal
            demo.send_signal(signal.SIGINT)
            assert demo.wait(60) == 0
        finally:
            demo.kill()


# A berth that runs


def test_a_boot_is_followed_to_its_end(berth: Up) -> None:
    sent = says(berth.berth("boot", "--vcpus", "2", "--memory-mb", "2048", "--wait"))
    assert re.fullmatch(rf"{UUID} active on c[12]-host\d+ in cell c[12]\n", sent)


def test_boot_without_waiting_prints_the_build_ids(berth: Up) -> None:
    assert re.fullmatch(rf"(asked for {UUID}\n){{2}}", says(berth.berth("boot", "--count", "2")))
    asked = json.loads(says(berth.berth("boot", "--json")))
    assert set(asked) == {"build", "request"}


def test_no_host_comes_with_its_reasons(berth: Up) -> None:
    sent = says(berth.berth("boot", "--vcpus", "999", "--wait"), code=1)
    assert sent.startswith("no host: no valid host among ")
    assert "VCPU" in sent
    assert "closest c" in sent
    answer = json.loads(says(berth.berth("boot", "--vcpus", "999", "--wait", "--json"), code=1))
    assert answer["decision"]["removals"][0]["left"] == 0


def test_delete_refuses_a_build_of_another_cell(berth: Up) -> None:
    ended = json.loads(says(berth.berth("boot", "--wait", "--json")))
    other = "c2" if ended["cell"] == "c1" else "c1"
    sentence = complains(berth.berth("delete", ended["build"], "--cell", other, "--wait"), 1)
    assert sentence == (
        f"{ended['build']} is no build of cell {other}: it holds 1 VCPU, 512 MEMORY_MB, 1 DISK_GB"
        f" on {ended['host']} in cell {ended['cell']}"
    )
    stranger = "00000000-0000-0000-0000-00000000000a"
    assert complains(berth.berth("delete", stranger, "--cell", "c1", "--wait"), 1) == (
        f"{stranger} is no build of cell c1"
    )
    says(berth.berth("delete", ended["build"], "--cell", ended["cell"], "--wait"))
    says(berth.berth("delete", ended["build"], "--cell", ended["cell"], "--wait"))  # deleted is deleted


def test_a_cleaned_node_gets_a_build(berth: Up) -> None:
    sent = says(berth.berth("node", "set", "free-node", "--event", "clean"))
    assert sent.startswith("published on ironic.node.c1.clean\n")
    node = re.search(UUID, sent)
    assert node is not None
    built = says(berth.berth("boot", "--flavor", "metal", "--wait"))
    assert f" active on {node[0]} in cell c1" in built
    again = says(berth.berth("boot", "--flavor", "metal", "--wait"), code=1)
    assert "CUSTOM_BAREMETAL" in again


def test_a_load_of_the_running_berth(berth: Up) -> None:
    done = berth.berth("load", "--attach", "--boots", "20", "--json", "--picture", "load.svg")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["boots"], figures["ended"], figures["audit"]) == (20, {"active": 20}, [])
    assert figures["hosts"] >= 20
    ElementTree.parse(berth.directory / "load.svg")
    assert figures["not_deleted"] == 0
    assert says(berth.berth("instances", "--name", figures["name"], "--json")) == ""


def test_a_load_keeps_its_instances_under_one_name_if_asked(berth: Up) -> None:
    done = says(berth.berth("load", "--attach", "--boots", "3", "--keep"))
    [name] = re.findall(r"the instances are named (load-[0-9a-f]{8})\n", done)
    assert (
        len(says(berth.berth("instances", "--name", name, "--status", "active", "--json")).splitlines()) == 3
    )


def test_a_load_ends_with_1_if_boots_get_no_host(berth: Up) -> None:
    done = says(berth.berth("load", "--attach", "--boots", "2", "--vcpus", "999"), code=1)
    assert "2 unplaceable" in done and "2 boots did not become active" in done


def test_the_audit_of_a_running_berth_is_clean(berth: Up) -> None:
    says(berth.berth("boot", "--wait"))
    assert re.fullmatch(
        r"audit: clean; \d+ consumers hold resources; builds: .*\d+ active.*\n"
        r"(  custom classes: CUSTOM_BAREMETAL \d of \d used\n)?",
        says(berth.berth("audit")),
    )
    missing = complains(berth.berth("audit", "--cells", "c1,c7"), code=1)
    assert missing.startswith(".berth has no data of a cell c7: name the existing cells")


def test_a_second_berth_with_the_same_state_is_refused(berth: Up) -> None:
    refused = complains(berth.berth("up", "--hosts", "1"), 1)
    assert refused == "another berth is running with its state in .berth"
    says(berth.berth("boot", "--wait"))


def test_waiting_for_a_boot_ends_at_the_timeout(berth: Up) -> None:
    sentence = complains(berth.berth("boot", "--wait", "--timeout", "0"), 1)
    assert re.fullmatch(rf"not waiting any longer: {UUID} did not end within 0 s", sentence)


# What needs nothing to run


def test_a_load_test_with_an_embedded_berth(user: User) -> None:
    done = user.berth("load", "--boots", "30", "--hosts", "10", "--build-time", "constant:0", "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert (figures["boots"], figures["hosts"], figures["ended"]) == (30, 10, {"active": 30})
    assert "audit: clean" in done.stderr
    assert list(user.directory.iterdir()) == []


def test_the_settings_show_their_sources_and_no_secrets(user: User) -> None:
    (user.directory / "berth.toml").write_text("[simulator]\nhosts = 5\n")
    secrets = {**NOWHERE, "BERTH_HOST": "7"}
    done = user.berth("--set", "simulator.seed=3", "settings", **secrets)
    assert done.returncode == 0
    assert (
        "# simulator\nsimulator.hosts = 5  # berth.toml\nsimulator.baremetal = 0  # default\n" in done.stdout
    )
    assert "simulator.seed = 3  # --set simulator.seed\n" in done.stdout
    assert "amqp_url = 'amqp://user:****@10.1.2.3/'  # BERTH_AMQP_URL\n" in done.stdout
    assert done.stderr == "BERTH_HOST is ignored: there is no such setting\n"
    assert "geheim" not in done.stdout


# Mistakes


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("boot", "no berth answers at .berth/bus.sock"),
        ("audit", "there is no state of berth in .berth"),
        ("run placement", "a separate worker needs a bus that other processes reach: set BERTH_AMQP_URL"),
        ("up --state-dir /dev/null/x", "/dev/null/x: Not a directory"),
        ("load --boots 1 --picture /nowhere/load.svg", "/nowhere/load.svg: No such file or directory"),
    ],
)
def test_an_impossible_command_ends_with_one_sentence(user: User, arguments: str, sentence: str) -> None:
    assert complains(user.berth(*arguments.split()), code=1).startswith(sentence)
    assert list(user.directory.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            "up --build-time long",
            "--build-time: simulator.build_time = 'long': 'long' is not a duration: constant:s",
        ),
        ("run nobody", "there is no worker 'nobody'; there are: placement, scheduler"),
        ("delete mine --cell c1", "'mine' is not the uuid of a build"),
        ("node set n --cell a.b", "cell: "),
    ],
)
def test_a_wrong_argument_ends_with_one_sentence(user: User, arguments: str, sentence: str) -> None:
    assert complains(user.berth(*arguments.split()), code=2).startswith(sentence)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("boot --colour red", "No such option: --colour"),
        ("--set hosts settings", "--set takes NAME=VALUE: there is no = in a text of 5 characters"),
    ],
)
def test_a_wrong_flag_is_named_with_the_way_to_help(user: User, arguments: str, words: str) -> None:
    done = user.berth(*arguments.split(), COLUMNS="120")
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "--help" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variables", "setting"),
    [
        ({"BERTH_AMQP_URL": "amqp://u@10.0.0.9/", "BERTH_DATABASE_URL": "postgresql://h/b"}, "amqp_url"),
        ({"BERTH_AMQP_URL": "amqp://u@[::1],10.0.0.9/", "BERTH_DATABASE_URL": "postgresql://h/b"},
         "amqp_url"),
        ({"BERTH_DATABASE_URL": "postgresql://u:p@10.0.0.9/b"}, "database_url"),
        ({"BERTH_DATABASE_URL": "postgresql://u:p@127.0.0.1/b?host=10.0.0.9"}, "database_url"),
        ({"BERTH_DATABASE_URL": "postgresql://u:p@127.0.0.1:5432,10.0.0.9:5432/b"}, "database_url"),
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
