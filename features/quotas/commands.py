"""`berth project quota`: limits how much the instances of a project may hold."""

from typing import Annotated

from berth.kit import ActCli, BadSetting, Commands, ListCli, option, plain_table, positional
from features.quotas.edits import (
    parsed_limits,
    project_to_edit,
    quotas_of,
    set_quota,
    suppose_quota,
    unset_quota,
    waiting_by_project,
)
from features.quotas.messages import (
    DEFAULT,
    NAME_OF_DEFAULT,
    UNLIMITED,
    ProjectShare,
    name_of_project,
    project_named,
    shares_of,
)

commands = Commands(name="quota", no_args_is_help=True)

_PROJECT = "The project's id; `default`: the limits of all projects without limits of their own."
_TO_DEFAULT = f"={NAME_OF_DEFAULT}"  # deletes a limit
Project = Annotated[str, positional(_PROJECT, metavar="PROJECT")]


@commands.command("set")
async def set_command(
    cli: ActCli,
    project: Project,
    limits: Annotated[
        list[str] | None,
        positional("A resource class, `instances` or `server_group_members`.", metavar="RESOURCE=LIMIT..."),
    ] = None,
    default: bool = option(False, "Limit all projects without limits of their own; name no project."),
) -> None:
    """Limit what the instances of a project may hold together; `unlimited` lifts the default's limit.

    The limits are checked when a host is claimed, also for concurrent requests. A limit below the present
    usage stops no instance: only requests that would use more are refused. Moves of the same size are never
    refused. Examples: `berth project quota set default instances=10 VCPU=40`, `berth project quota set p1
    CUSTOM_BAREMETAL_GOLD=2`.

    `VCPU=default` deletes a limit, so that the default applies to the project again; `berth project quota set
    p1 default` deletes all limits of a project.
    """
    limits = limits or []
    if default:
        project, limits = NAME_OF_DEFAULT, [*([project] if project != NAME_OF_DEFAULT else []), *limits]
    of, every = project_to_edit(project), NAME_OF_DEFAULT in limits
    if every and len(limits) > 1:
        raise BadSetting(f"{NAME_OF_DEFAULT} stands alone: it deletes all limits of the project")
    deleted = [limit.removesuffix(_TO_DEFAULT) for limit in limits if limit.endswith(_TO_DEFAULT)]
    parsed = {} if every else parsed_limits([each for each in limits if not each.endswith(_TO_DEFAULT)])
    if not (parsed or deleted or every):
        raise BadSetting("name a limit, such as VCPU=40")
    async with cli.bus("quota") as bus:
        if cli.dry_run:
            edited = await suppose_quota(bus, of, parsed, [] if every else deleted, every)
        else:
            if deleted or every:
                edited = await unset_quota(bus, of, deleted)
            if parsed:
                edited = await set_quota(bus, of, parsed)
    over = [share.resource for share in shares_of(edited) if share.is_over]
    note = f"; it uses more {', '.join(over)} than that already" if over else ""
    if not parsed:
        what = "limits that would be deleted" if cli.dry_run else "limits deleted"
        cli.value(edited, f"{project}: {what}: {', '.join(deleted or ['all'])}{note if cli.dry_run else ''}")
        return
    texts = ", ".join(
        (
            *(f"{name} {_text(limit)}" for name, limit in sorted(parsed.items())),
            *(f"{each} default" for each in deleted),
        )
    )
    cli.value(edited, f"{project}{' would have' * cli.dry_run}: {texts}{note}")


@commands.command("list")
async def show(
    cli: ListCli,
    project: Annotated[str, positional(f"{_PROJECT} None: all projects.", metavar="[PROJECT]")] = "",
    limited: bool = option(False, "Without projects that have instances but no limit of their own."),
) -> None:
    """Show what projects use of their limits, and how many of their requests wait.

    With --limited, projects without a limit of their own are not shown.
    The used `server_group_members` are those of the project's largest server group.
    """
    async with cli.bus("quota") as bus:
        found = await quotas_of(bus, project_named(project) if project else None, used=not limited)
        waiting = await waiting_by_project(bus, [each.project for each in found if each.project])
    rows = [
        (
            name_of_project(each.project),
            share.resource,
            *_numbers(each.project, share),
            waiting.get(each.project) or "",
        )
        for each in found
        for share in shares_of(each)
    ]
    titles = ("project", "resource", "used", "limit", "", "waiting requests")
    cli.rows(found, plain_table(titles, rows) if rows else "no limits, and no instances")


def _numbers(project: str, share: ProjectShare) -> tuple[str, str, str]:
    note = "over" if share.is_over else "default" if project and share.is_default else ""
    return "" if project == DEFAULT else str(share.used), _text(share.limit), note


def _text(limit: int | None) -> str:
    return "unlimited" if limit is None or limit == UNLIMITED else str(limit)
