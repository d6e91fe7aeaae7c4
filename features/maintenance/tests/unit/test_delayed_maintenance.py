"""Maintenance windows and evacuations that are problems."""

import pytest

from features.maintenance.messages import (
    HostEvacuation,
    MaintenanceFound,
    MaintenanceWindow,
    WindowHost,
    WindowState,
)
from features.maintenance.problems import delayed
from tests.support.ids import uid

WINDOW = MaintenanceWindow(id=uid(1), roots=(uid(2), uid(3)), begins=100.0, ends=200.0)


def an_evacuation(number: int, state: str) -> HostEvacuation:
    given = {"id": uid(number), "root": uid(number, "a"), "host": f"h{number}", "cell": "c1"}
    return HostEvacuation(**given, missing_since=50.0 + number, state=state)  # type: ignore[arg-type]


def test_windows_and_evacuations_in_time_are_no_problem() -> None:
    state = WindowState(window=WINDOW, hosts=(WindowHost(root=uid(2), host="h2"),))
    assert delayed(MaintenanceFound(windows=(state,), evacuations=(an_evacuation(4, "fencing"),))) == []


def test_hosts_that_are_late_are_one_problem() -> None:
    hosts = tuple(WindowHost(root=uid(n), host=f"h{n}", late=True, since=60.0 + n) for n in (2, 3))
    [problem] = delayed(MaintenanceFound(windows=(WindowState(window=WINDOW, hosts=hosts),)))
    assert (problem.kind, problem.object, problem.since) == ("maintenance-late", "h2 and h3", 62.0)
    assert f"`berth host maintenance show {uid(1)}`" in problem.do


@pytest.mark.parametrize(
    ("state", "kind", "command"),
    [
        ("held", "evacuation-held", "berth host maintenance release h4"),
        ("unfenced", "evacuation-unfenced", f"berth host maintenance show {uid(4)}"),
    ],
)
def test_evacuations_that_stopped_are_one_problem(state: str, kind: str, command: str) -> None:
    evacuations = (an_evacuation(4, state), an_evacuation(5, state))
    [problem] = delayed(MaintenanceFound(evacuations=evacuations))
    assert (problem.kind, problem.severity, problem.since) == (kind, "critical", 54.0)
    assert "h4 and h5" in problem.says and command in problem.do
