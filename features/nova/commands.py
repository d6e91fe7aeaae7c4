"""`berth openstack`: commands about a Nova that berth serves or observes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from berth.kit import (
    BadSetting,
    Cli,
    Commands,
    check_certificates,
    option,
    placement_url,
    token_of,
    write_json,
)
from bus.masking import printable
from control_room.kit import several

SECONDS = 60.0  # for an answer with a report
_COLOURS = {"error": "red", "warning": "yellow", "note": "dim"}

commands = Commands()


@dataclass(frozen=True)
class CheckOptions:
    step: Literal["import", "placement", "scheduler"] | None = option(
        None, "The next step: import, placement or scheduler (default: all of them)."
    )
    done: bool = option(False, "Check the result of the step, after it was taken.")
    url: str = option(
        "",
        "The Placement to compare with Nova: before the import the former one (default: where"
        " placement_http says).",
        metavar="URL",
    )
    token_file: Path | None = option(
        None, "With the token for --url (default: $OS_TOKEN, or admin).", metavar="FILE"
    )
    cacert: str = option("", "Certificates to trust in addition to the system's.", metavar="FILE")


@commands.command("check")
async def check_command(cli: Cli, options: CheckOptions) -> int:
    """Print what would go wrong in a step of taking over a Nova, with the command that repairs it.

    The command compares Nova's databases with a Placement and with berth's settings, and reads how many
    messages and consumers the RabbitMQ queue of Nova's scheduler has. It changes nothing. Exit code 0 without
    problems, 1 with warnings, 2 with errors.
    """
    from berth.kit import PlacementClient  # an HTTP client, which loads slowly
    from features.nova.check import observed
    from features.nova.takeover.facts import exit_code
    from features.nova.takeover.judgement import judged

    address = cli.settings.placement.http
    if not options.url and not address:
        raise BadSetting("give the URL of the Placement API with --url, or set placement_http")
    check_certificates(options.cacert)
    url = placement_url("--url", options.url or f"http://{address}")
    client = PlacementClient(url, token_of(options.token_file, "OS_TOKEN"), options.cacert)
    facts = await observed(cli.settings, client, step=options.step, is_done=options.done)
    found = judged(facts)
    code = exit_code(found)
    if cli.as_json:
        write_json({"step": options.step, "exit_code": code, "findings": msgspec.to_builtins(found)})
        return code
    for finding in found:
        cli.say.print(f"{finding.level:8}", style=_COLOURS[finding.level], end="")
        sentences = " ".join(filter(None, (finding.says, finding.means)))
        cli.line(f"{printable(finding.about)}: {printable(sentences)}")
        if finding.do:
            cli.line(f"        → {printable(finding.do)}", "dim")
    counts = {level: sum(finding.level == level for finding in found) for level in _COLOURS}
    cli.line(", ".join(several(count, level) for level, count in counts.items()))
    return code
