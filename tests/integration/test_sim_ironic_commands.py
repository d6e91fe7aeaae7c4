"""`berth ironic node`: nodes of a simulated Ironic are listed and changed, as a person would."""

import asyncio
import io
import json
import threading
from collections.abc import Iterator
from functools import partial

import pytest
from rich.console import Console
from typer.testing import CliRunner

from berth.commands import ironic_access
from berth.commands.ironic import ironic
from berth.configuration import read
from berth.kit.terminal import Cli
from berth.settings import BadSetting
from bus.errors import OperationRefused, Unavailable
from bus.http import listen
from compute_sim.ironic.node import enrolled
from compute_sim.ironic.simulation import Simulation
from tests.support.simulated_ironic import NOW


class Person:
    """Types commands at a simulated Ironic."""

    def __init__(self, url: str) -> None:
        self.url = url

    def types(self, *words: str, ends: int = 0) -> str:
        screen = io.StringIO()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ironic_access, "effective", lambda: read(environment={}))
            patch.setattr(ironic_access, "Cli", partial(Cli, say=Console(file=screen, width=250)))
            done = CliRunner().invoke(ironic, ["node", *words, "--url", self.url])
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == ends, screen.getvalue() + done.output
        return screen.getvalue() + done.output


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    sim = Simulation(enrolled(20, now=NOW), listener=listen("127.0.0.1:0"))
    loop = asyncio.new_event_loop()
    running: list[asyncio.Task[None]] = []

    def live() -> None:
        running.append(loop.create_task(sim.run()))
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(running[0])
        loop.close()

    thread = threading.Thread(target=live)
    thread.start()
    yield Person(sim.url)
    loop.call_soon_threadsafe(lambda: running[0].cancel())
    thread.join(10)


def test_the_node_list_has_one_line_per_node(person: Person) -> None:
    assert len(person.types("list").splitlines()) == 21
    assert len(person.types("list", "--limit", "5").splitlines()) == 6
    lines = person.types("list", "--json", "--state", "available", "--limit", "3").splitlines()
    assert [json.loads(line)["name"] for line in lines] == ["metal00001", "metal00002", "metal00003"]


def test_maintenance_and_fields_of_a_node_are_changed(person: Person) -> None:
    assert "in maintenance" in person.types("set", "metal00002", "--maintenance", "on", "--reason", "a disk")
    assert "in maintenance" not in person.types("set", "metal00002", "--maintenance", "off")
    person.types(
        "set", "metal00002", "resource_class=gold", "properties/rack=R2", "extra/tries=3", "owner=null"
    )
    answer = json.loads(person.types("show", "metal00002", "--json"))
    assert (answer["resource_class"], answer["provision_state"]) == ("gold", "available")
    assert (answer["properties"]["rack"], answer["extra"], answer["owner"]) == ("R2", {"tries": 3}, None)
    assert "resource_class: gold, in placement CUSTOM_GOLD" in person.types("show", "metal00002")


@pytest.mark.parametrize(
    ("words", "problem", "says"),
    [
        (("set", "metal00020", "fault=x"), OperationRefused, "Cannot patch"),
        (("set", "metal00001", "owner"), BadSetting, "NAME=VALUE"),
        (("show", "nobody"), OperationRefused, "knows no node"),
    ],
)
def test_impossible_node_commands_end_with_one_sentence(
    person: Person, words: tuple[str, ...], problem: type[Exception], says: str
) -> None:
    with pytest.raises(problem, match=says):
        person.types(*words)


def test_an_unreachable_ironic_is_reported() -> None:
    with listen("127.0.0.1:0") as closed:
        nowhere = Person(f"http://127.0.0.1:{closed.getsockname()[1]}")
    with pytest.raises(Unavailable, match="failed"):
        nowhere.types("set", "metal00001", "--maintenance", "on")
    with pytest.raises(BadSetting, match="--url takes a URL"):
        Person("nonsense").types("list")
