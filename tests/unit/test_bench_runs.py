"""Results of benchmarks from boots and samples, stored runs, and a small complete run."""

import json
from pathlib import Path

import pytest

from bench import __main__ as bench
from bench import machine, runs
from bench.boot_profile import summed
from bench.embedded_boots import embedded_boots
from bench.figures import Figure, MachineFacts
from bench.processes import kind
from bench.suite import SUITE, Benchmark, BenchSizes

MACHINE = MachineFacts(processor="one", cores=2, load=0.0, python="3", rabbitmq="3", postgresql="15")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runs, "KEPT", tmp_path / "runs")
    monkeypatch.setattr(runs, "RECORDED", tmp_path / "recorded.json")
    monkeypatch.setattr(machine, "facts", lambda: MACHINE)  # asking RabbitMQ's version takes an Erlang
    monkeypatch.setattr(machine, "_TURN", 0.001)
    return tmp_path


@pytest.fixture
def suite(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Figure]]:
    finds = {"one": [Figure("f", 10.0, "/s", "up", "")], "two": [Figure("g", 5.0, "ms", "down", "")]}

    def made(name: str) -> Benchmark:
        return Benchmark(name, 1, lambda sizes: tuple(finds[name]))

    monkeypatch.setattr(bench, "SUITE", {name: made(name) for name in finds})
    return finds


def test_a_run_is_kept_and_the_next_is_compared_with_the_recorded_one(
    kept: Path, suite: dict[str, list[Figure]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench.main(["--record"]) == 0
    assert "nothing is recorded yet" in capsys.readouterr().out
    suite["one"] = [Figure("f", 5.0, "/s", "up", "")]
    assert bench.main(["--json", str(kept / "mine.json")]) == 0
    said = capsys.readouterr().out
    assert "0.50 ×" in said
    assert "worse by more than a tenth: one f" in said
    assert "then: recorded.json" in said
    assert runs.read(kept / "mine.json").benches["one"].figures[0].value == 5.0
    assert (kept / "mine.svg").exists()
    words = json.dumps(json.loads((kept / "recorded.json").read_text()))
    assert str(kept) not in words
    assert str(Path.home()) not in words


def test_a_failed_benchmark_does_not_stop_the_others(
    kept: Path, suite: dict[str, list[Figure]], capsys: pytest.CaptureFixture[str]
) -> None:
    del suite["one"]
    assert bench.main(["--record", "--json", str(kept / "mine.json")]) == 1
    assert "FAILED: one: KeyError: 'one'" in capsys.readouterr().err
    assert runs.read(kept / "mine.json").benches.keys() == {"two"}
    assert not (kept / "recorded.json").exists()


@pytest.mark.parametrize("words", [["three"], ["--mix", "1"], ["--mix", "100000"]])
def test_an_unknown_benchmark_or_mix_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.main(words)


def test_a_tiny_run_from_end_to_end(
    kept: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tiny(sizes: BenchSizes) -> tuple[Figure, ...]:
        return embedded_boots(200, 40, sizes.flavors)

    monkeypatch.setitem(SUITE, "embedded", Benchmark("tiny", 1, tiny))
    assert bench.main(["embedded", "--json", str(kept / "tiny.json")]) == 0
    figures = runs.read(kept / "tiny.json").benches["embedded"].figures
    assert [figure.name for figure in figures] == ["boots/s", "processor a boot, the load's too"]
    assert all(figure.value > 0 for figure in figures)


@pytest.mark.parametrize(
    ("command", "is_a"),
    [
        ("python -m berth run conductor --cell c1 ", "conductor"),
        ("python -m berth up ", "supervisor"),
        ("python -m berth load --attach ", "load"),
        ("postgres: berth berth 127.0.0.1(59024) idle", "PostgreSQL"),
        ("/usr/lib/erlang/erts-13.1.5/bin/beam.smp -W w", "RabbitMQ"),
        ("py-spy record --pid 1", "py-spy"),
        ("/bin/sh -c if read -r line", "other"),
    ],
)
def test_a_process_is_known_by_its_command_line(command: str, is_a: str) -> None:
    assert kind(0, command) == is_a


def test_samples_belong_to_the_innermost_function_of_ours() -> None:
    raw = "\n".join([
        "run (/here/bus/delivery/runner.py:1);decode (/here/bus/codec.py:3);loads (/lib/json/decoder.py:9) 3",
        "run (/here/bus/delivery/runner.py:1);select (/lib/python3/selectors.py:4) 2",
        "main (/lib/python3/runpy.py:1);poll (/here/.venv/lib/site-packages/uvloop/loop.py:4) 5",
        "run (/here/berth/commands/terminal.py:7);run (/lib/python3/asyncio/runners.py:118) 90",  # it waits
    ])  # fmt: skip
    samples = summed([raw], "/here/")
    assert samples["package"] == {"bus": 3, "bus/delivery": 2, "event loop": 5}
    assert samples["whose code"] == {"python: decoder": 3, "python: selectors": 2, "uvloop": 5}
    assert samples["function"] == {
        "decode (bus/codec.py:3)": 3,
        "run (bus/delivery/runner.py:1)": 2,
        "event loop": 5,
    }
