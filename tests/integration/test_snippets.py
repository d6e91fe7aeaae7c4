"""Runs every command and example of docs/, the README and the pages of features, page by page in empty
directories.

`make test` runs the first and the cheap pages; `make snippets` runs all, also on RabbitMQ and PostgreSQL,
and checks types. tests/support/snippets.py describes the directives in pages.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.servers import Postgres, RabbitMQ, find_rabbitmq, private_directory
from tests.integration.page_reader import PageReader
from tests.support.forked_berth import forked_berth
from tests.support.servers import a_module_database, installed
from tests.support.snippets import PAGES, ROOT, needs, snippets

AMQP = "amqp://user:password@127.0.0.1/"
DATABASE = "postgresql://user:password@127.0.0.1/berth"
PLAYED = [page for page in PAGES if any(snippet.played for snippet in snippets(page))]
ALONE = [page for page in PLAYED if not needs(page)]
EVERY_TIME = ("tutorial", "filter", "http", "rest")
ON_SERVICES = [page for page in PLAYED if needs(page) == "services"]


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=() if page.stem in EVERY_TIME else (pytest.mark.soak,)) for page in ALONE],
    ids=named,
)
def test_the_examples_of_a_page_without_services_work(page: Path, tmp_path: Path, tools: Path) -> None:
    with PageReader(tmp_path, tools=tools) as reader:
        for snippet in snippets(page):
            reader.read(snippet)


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("tools")
    with forked_berth(folder):
        yield folder


@pytest.fixture
def broker() -> Iterator[RabbitMQ]:
    """Start the broker of `make services`."""
    installed(find_rabbitmq)
    directory = private_directory("berth-snippets-")
    with RabbitMQ(directory / "rabbitmq", management=True, samples_often=False) as broker:
        yield broker
    shutil.rmtree(directory, ignore_errors=True)


@pytest.mark.soak
@pytest.mark.services
@pytest.mark.parametrize("page", ON_SERVICES, ids=named)
def test_the_examples_of_a_page_on_rabbitmq_and_postgresql_work(
    page: Path, tmp_path: Path, broker: RabbitMQ, postgres: Postgres, tools: Path
) -> None:
    with (
        a_module_database(postgres) as database,
        PageReader(tmp_path, {AMQP: broker.url, DATABASE: database}, broker.variables(), tools) as reader,
    ):
        for snippet in snippets(page):
            reader.read(snippet)


@pytest.mark.soak
def test_python_examples_in_the_documents_pass_the_type_check(tmp_path: Path) -> None:
    for page in PAGES:
        for number, snippet in enumerate(snippets(page)):
            if snippet.language == "python" and "tested" not in snippet.marks:
                file = (
                    tmp_path
                    / named(page).replace("/", "-").removesuffix(".md")
                    / (snippet.marks.get("as") or f"example{number}.py")
                )
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(snippet.text)
    of_drivers = tmp_path / "docs-howto-driver"  # the example of moves extends the driver of this page
    assert of_drivers.is_dir()
    for directory in tmp_path.iterdir():
        found = subprocess.run(
            [sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", directory],
            cwd=ROOT,
            env={"MYPYPATH": f"{ROOT}:{directory}:{of_drivers}", "PATH": ""},
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, f"{directory.name}: {found.stdout}{found.stderr}"
