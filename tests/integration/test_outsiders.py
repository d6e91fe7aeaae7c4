"""Publishers and readers that are no Python of ours: the example in docs/howto/client.md, as it stands."""

import re
import shutil
import sys
from collections.abc import Iterator

import pytest

from deploy.servers import Postgres, RabbitMQ, find_rabbitmq, private_directory
from tests.support.berth_processes import ROOT, Up
from tests.support.servers import a_module_database, installed

PAGE = ROOT / "docs" / "howto" / "client.md"

pytestmark = [pytest.mark.services, pytest.mark.slow]


@pytest.fixture(scope="module")
def berth(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """Run as the page says, under the name that outsiders know: so on a broker of its own."""
    installed(find_rabbitmq)
    directory = private_directory("berth-outsiders-")
    with RabbitMQ(directory / "rabbitmq") as broker, a_module_database(postgres) as database:
        environment = {"BERTH_AMQP_URL": broker.url, "BERTH_DATABASE_URL": database, "BERTH_CELLS": "c1,c2"}
        flags = ("--hosts", "10", "--build-time", "constant:0.1")
        with Up(tmp_path_factory.mktemp("outsiders"), environment, *flags) as berth:
            yield berth
    shutil.rmtree(directory, ignore_errors=True)


def the_example() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    found = [block for block in blocks if "import pika" in block]
    assert len(found) == 1, f"{PAGE} has one example with pika"
    return str(found[0])


def said_to(berth: Up, example: str) -> str:
    ran = berth.run(sys.executable, "-c", example)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_the_example_of_the_page_has_its_build_active(berth: Up) -> None:
    said = said_to(berth, the_example())
    assert re.match(r"build\.ended\.c[12] ", said)
    assert "'status': 'active'" in said
    assert "'host': 'c" in said


def test_the_example_of_the_page_asking_too_much_is_told_why_there_is_no_host(berth: Up) -> None:
    example = the_example().replace('"vcpus": 1,', '"vcpus": 99999,')
    assert "99999" in example
    said = said_to(berth, example)
    assert said.startswith("build.unplaceable ")
    reason = re.search(r"'reason': '([^']+)'", said)
    assert reason is not None, said
    assert "VCPU" in reason[1]
    assert "99999" in reason[1]
