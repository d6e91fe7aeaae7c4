"""The rules for drivers: the example of docs/howto/driver.md follows all, each broken driver breaks one."""

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from berth.settings import BadSetting
from bus.errors import Unavailable
from bus.messages import BuildEnded
from bus.reports import Inventory
from bus.requests import BuildSpec, Flavor
from compute_sim.core.drivers import DeviceDriver
from compute_sim.core.provider_tree import ProviderTree
from compute_sim.driver_kit import DriverStand, check_driver
from compute_sim.guest_driver import DriverError, DriverGuest
from compute_sim.guests import GuestRecord
from compute_sim.machines import BadDriver, BadMachine, Hardware, Machine, fleet, load_driver, machines
from tests.support.buses import LOCALLY, Connect
from tests.support.command_line import CommandLine
from tests.support.driver_checks import an_agent, broken, check, module_of_the_page
from tests.support.driver_cloud import a_driver_cloud

FolderDriver: Any = module_of_the_page("folders").FolderDriver


async def test_the_example_of_the_documentation_follows_all_rules(tmp_path: Path) -> None:
    results = await check(DriverStand(lambda: FolderDriver(str(tmp_path))))
    assert broken(results) == {}
    assert {result.outcome for result in results} == {"passed"}
    assert {result.part for result in results} == {"inventory", "guests", "agent"}
    assert not [*tmp_path.glob("*/*.guest")]


async def test_rules_about_guests_are_skipped_for_a_hardware_driver() -> None:
    results = await check_driver(DriverStand(DeviceDriver))
    assert {(result.part, result.outcome) for result in results if result.part != "inventory"} == {
        ("guests", "skipped"),
        ("agent", "skipped"),
    }
    assert broken(results) == {}


class _Forgetful(FolderDriver):  # type: ignore[misc]
    """A driver that lists only guests that the same object created."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self._mine: set[tuple[str, int]] = set()

    async def create(self, guest: GuestRecord, spec: BuildSpec) -> None:
        await super().create(guest, spec)
        self._mine.add((guest.build, guest.attempt))

    async def guests(self) -> Sequence[DriverGuest]:
        return [each for each in await super().guests() if (each.build, each.attempt) in self._mine]


class _Strict(FolderDriver):  # type: ignore[misc]
    """A driver that refuses to delete a guest that does not exist."""

    async def destroy(self, guest: GuestRecord) -> None:
        self._file(guest.root, guest.build, guest.attempt).unlink()


class _Deaf(FolderDriver):  # type: ignore[misc]
    """A driver that ignores calls of stop()."""

    async def stop(self, guest: GuestRecord) -> None:
        pass


class _Boundless(FolderDriver):  # type: ignore[misc]
    """A driver that accepts guests of any size."""

    async def create(self, guest: GuestRecord, spec: BuildSpec) -> None:
        self._write(guest, "running")


class _Growing(FolderDriver):  # type: ignore[misc]
    """A driver that reports another amount at each call."""

    def update_provider_tree(self, tree: ProviderTree) -> None:
        self.vcpus += 1
        super().update_provider_tree(tree)


class _Twin(FolderDriver):  # type: ignore[misc]
    """A driver that gives a child provider of every host the same name."""

    def update_provider_tree(self, tree: ProviderTree) -> None:
        super().update_provider_tree(tree)
        tree.give(tree.add("gpu0"), VGPU=Inventory(total=1))


class _Hanging(FolderDriver):  # type: ignore[misc]
    """A driver that never completes the deletion of a running guest."""

    async def destroy(self, guest: GuestRecord) -> None:
        if self._file(guest.root, guest.build, guest.attempt).exists():
            await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("driver", "rule", "reason"),
    [
        (_Forgetful, "A new driver object must find", "check-1; guests() returns no guest"),
        (_Strict, "After destroy(), guests() must not return", "FileNotFoundError"),
        (_Deaf, "After stop(), guests() must return", "returns attempt 1 running on check-1"),
        (_Boundless, "If a host cannot hold a guest", "was created"),
        (_Growing, "If nothing has changed", "other contents at the second call"),
        (_Twin, "A driver of hardware must give the providers", "both hosts have a provider gpu0"),
        (_Hanging, "After destroy(), guests() must not return", "not ended within 0.1 s"),
    ],
    ids=lambda value: value.__doc__ if isinstance(value, type) else "",
)  # fmt: skip
async def test_a_driver_that_breaks_a_rule_fails_it_with_the_reason(
    driver: Any, rule: str, reason: str, tmp_path: Path
) -> None:
    stand = DriverStand(lambda: driver(str(tmp_path)), timeout=0.1 if driver is _Hanging else 30.0)
    failed = broken(await check(stand))
    [found] = [why for name, why in failed.items() if name.startswith(rule)]
    assert reason in found


class _Refusing(FolderDriver):  # type: ignore[misc]
    async def create(self, guest: GuestRecord, spec: BuildSpec) -> None:
        self._write(guest, "running")
        raise DriverError("no bootable device", retry=False)


class _Stuck(FolderDriver):  # type: ignore[misc]
    async def destroy(self, guest: GuestRecord) -> None:
        raise DriverError("the disk is busy")


async def test_a_failed_create_is_cleaned_up_and_reported_with_its_cause(tmp_path: Path) -> None:
    stand = DriverStand(lambda: _Refusing(str(tmp_path)))
    report = await an_agent(stand).build(stand.build_order(stand.new_build()))
    assert report is not None
    assert (report.outcome, report.cause, report.retry, report.leftover) == (
        "failed", "no bootable device", False, False,
    )  # fmt: skip
    assert await stand.guest_driver.guests() == []


async def test_a_guest_that_cannot_be_deleted_stays_known_and_its_order_is_retried(tmp_path: Path) -> None:
    stand = DriverStand(lambda: _Stuck(str(tmp_path)))
    agent, build = an_agent(stand), stand.new_build()
    await agent.build(stand.build_order(build))
    with pytest.raises(Unavailable, match="the disk is busy"):
        await agent.destroy(stand.destroy_order(build))
    assert agent.disk.guest(build, 1) is not None


@LOCALLY
async def test_a_cloud_boots_and_deletes_guests_through_an_operators_driver(
    connect: Connect, tmp_path: Path
) -> None:
    driver = FolderDriver(str(tmp_path / "guests"))
    (agent,) = fleet(1, 1, hardware=Hardware(machines=(Machine((driver,)),)))
    async with a_driver_cloud(connect, f"sqlite+aiosqlite:///{tmp_path}/", agent.hosts) as cloud:
        (end,) = await cloud.booted(Flavor(name="f", vcpus=1, memory_mb=64, disk_gb=0))
        assert isinstance(end, BuildEnded) and end.status == "active", end
        assert await driver.guests() == [DriverGuest(build=end.build, attempt=1, root=agent.hosts[0].root)]
        await cloud.delete(end.build)
        assert await driver.guests() == []


LOADABLE = {"mine.py": "class NoDriver:\n    pass\n", "raises.py": "1 / 0\n"}


@pytest.mark.parametrize(
    ("name", "options", "refusal"),
    [
        ("absent:Driver", {}, "cannot import 'absent': ModuleNotFoundError"),
        ("raises:Driver", {}, "cannot import 'raises': ZeroDivisionError: division by zero"),
        ("mine:Absent", {}, "there is no class 'Absent' in 'mine'"),
        ("mine:NoDriver", {}, "has no method update_provider_tree"),
        ("folders:FolderDriver", {}, "path: is required"),
        ("folders:FolderDriver", {"path": "x", "cpus": 1}, "cpus: no such option; there are: path, vcpus"),
        ("folders:FolderDriver", {"path": "x", "vcpus": "many"}, "vcpus: Expected `int`, got `str`"),
        ("licences:LicenceDriver", {"seats": "many"}, "seats: Expected `int`, got `str`"),
        ("compute_sim.guest_driver:GuestDriver", {}, "lacks the method create"),
    ],
)  # fmt: skip
def test_a_wrong_driver_or_option_is_refused_by_name(
    name: str, options: dict[str, Any], refusal: str, importable: Callable[[], None]
) -> None:
    with pytest.raises(BadDriver) as refused:
        load_driver(name, options)
    assert refusal in f"{refused.value.option}{': ' * bool(refused.value.option)}{refused.value}"


def test_a_machines_file_names_a_driver_with_its_options(
    importable: Callable[[], None], tmp_path: Path
) -> None:
    file = tmp_path / "machines.toml"
    file.write_text(
        '[kvm]\ndrivers = ["folders:FolderDriver"]\n"folders:FolderDriver" = {path = "p", vcpus = 3}'
    )
    (machine,) = machines(("kvm",), str(file))
    assert machine.guest_driver is not None and vars(machine.guest_driver)["vcpus"] == 3
    assert not machine.flat
    file.write_text('[kvm]\ndrivers = ["folders:FolderDriver"]\n"folders:FolderDriver" = {path = 1}')
    with pytest.raises(BadMachine, match=r"kvm\.folders:FolderDriver\.path: Expected `str`, got `int`"):
        machines(("kvm",), str(file))
    with pytest.raises(BadMachine, match="absent:Driver: cannot import 'absent'"):
        machines(("absent:Driver",))


@pytest.fixture
def importable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in LOADABLE.items():
        (tmp_path / name).write_text(text)
    for name in ("folders", "licences"):
        monkeypatch.setitem(sys.modules, name, module_of_the_page(name))
    monkeypatch.syspath_prepend(str(tmp_path))


# `berth cell agent check`


async def test_the_command_reports_each_rule_and_fails_if_one_is_broken(
    importable: Callable[[], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    agent_command = CommandLine("cell agent", monkeypatch, capsys)
    monkeypatch.setattr(sys.modules["folders"], "BoundlessDriver", _Boundless, raising=False)
    path = f"path={tmp_path}/guests"
    rules = await agent_command.json("check", "folders:FolderDriver", path, "vcpus=4", "--memory-mb", "32")
    assert {rule["outcome"] for rule in rules} == {"passed"}
    rules = await agent_command.json("check", "folders:BoundlessDriver", path, ends=1)
    [failed] = [rule for rule in rules if rule["outcome"] == "failed"]
    assert failed["reason"] == "a guest with 2147483647 MB of memory was created"
    assert "15 of 16 rules" in await agent_command("check", "folders:BoundlessDriver", path, ends=1)


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (("absent:Driver",), "absent:Driver: cannot import 'absent'"),
        (("folders:FolderDriver",), "folders:FolderDriver: path: is required"),
        (("folders:FolderDriver", "path"), "'path': give an option of the driver as NAME=VALUE"),
        (("folders:FolderDriver", "path=p", "vcpus=many"), "vcpus: Expected `int`, got `str`"),
        (("folders:FolderDriver", "path=[1"), "path: not JSON"),
    ],
)
async def test_the_command_names_a_wrong_driver_or_option(
    words: tuple[str, ...],
    refusal: str,
    importable: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(BadSetting, match=re.escape(refusal)):
        await CommandLine("cell agent", monkeypatch, capsys)("check", *words)
