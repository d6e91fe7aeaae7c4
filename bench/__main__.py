"""`make bench`: every benchmark in turn, or the ones named; each starts what it needs, prints a table."""

import subprocess
import sys

BENCHES = {
    "hops": "hop rate, single and coalesced",
    "amqp_client": "aio-pika's classes against its underlay channel",
    "claims": "claims a second by batch size",
    "candidates": "candidate search at 1,000, 10,000 and 100,000 hosts",
    "replica": "a scheduler's replica of placement's memory, of 10,000 and 100,000 hosts",
    "decisions": "a scheduler's decisions alone, at 1,000 and 10,000 hosts, of 1 and 20 flavors",
    "boots": "boots a second, end to end, and what each costs",
    "schedulers": "1, 2 and 4 schedulers: how often one is refused because another was first",
    "draining": "50 hosts drained under a running load of boots: what it does to the boots",
    "ironic": "from Ironic's event to a claimable node, with 10,000 nodes",
    "placement_side_by_side": "OpenStack Placement and berth, asked the same",
}


def main() -> None:
    wanted = sys.argv[1:] or list(BENCHES)
    unknown = [name for name in wanted if name not in BENCHES]
    if unknown:
        listed = "\n".join(f"  {name:22} {says}" for name, says in BENCHES.items())
        sys.exit(f"no benchmark {', '.join(unknown)}; there are:\n{listed}")
    for name in wanted:
        print(f"== {name}: {BENCHES[name]}", flush=True)
        subprocess.run([sys.executable, "-m", f"bench.{name}"], check=True)


if __name__ == "__main__":
    main()
