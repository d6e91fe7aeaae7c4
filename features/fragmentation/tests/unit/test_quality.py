"""The benchmark of placement quality: the profile balanced is no worse than best fit on synthetic traces."""

import pytest

from bench.quality import gpu_trace, numa_trace, vm_trace
from bench.quality.__main__ import in_memory, main, policy_named


def test_gpus_are_filled_at_least_as_well_as_by_best_fit() -> None:
    trace = gpu_trace.synthetic(1)
    berth = gpu_trace.with_berth(trace, 1, in_memory("balanced"))
    assert berth["allocated"] >= gpu_trace.with_best_fit(trace, 1)["allocated"] + 1


@pytest.mark.soak
def test_instances_of_numa_nodes_wait_less_than_with_best_fit() -> None:
    trace = numa_trace.synthetic(1)
    starts = numa_trace.random_starts(trace, 2, 1)
    best_fit = numa_trace.waiting(trace, starts, numa_trace.PlainHosts(numa_trace.best_fit))
    berth = numa_trace.with_berth(trace, starts, policy_named("balanced"), 1)
    assert berth["wait"] <= best_fit["wait"]


def test_instances_are_rejected_no_more_than_with_best_fit() -> None:
    trace = vm_trace.trace_of(vm_trace.synthetic(1).machines[:600])
    hosts = trace.hosts(1.05)
    best_fit = vm_trace.rejected(trace, vm_trace.PlainFleet(hosts, best=True))
    berth = vm_trace.with_berth(trace, hosts, in_memory("balanced"), 1)
    assert berth["rejected"] <= best_fit["rejected"]


def test_the_bound_is_that_of_instances_that_can_be_cut() -> None:
    halves = [vm_trace.VirtualMachine(0.0, 2.0, vm_trace.CPU // 2, 1) for _ in range(3)]
    assert vm_trace.trace_of(halves).bound == 1.5
    assert vm_trace.trace_of(halves).hosts() == 2


def test_a_missing_trace_ends_with_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--gpu", "/nowhere"])
    assert "--gpu: no such folder: /nowhere" in capsys.readouterr().err
