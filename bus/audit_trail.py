"""The audit trail: records, stored by the schedulers, of the acts that people and programs requested."""

from typing import Annotated, Literal

from msgspec import Meta

from bus.vocabulary import END, Cause, Id, KeystoneId, LongList, Message, Seconds, ShortList, Text, Value

Role = Literal["", "reader", "operator", "admin"]  # "": no role
Outcome = Literal["started", "done", "refused", "denied", "failed"]
Interface = Literal["command", "control room", "placement api", "rest", "bus"]
PROCESS_RESTART = (
    "process restart"  # act in the record that a process started again without having been stopped
)
MOST_RECORDS = 500  # maximum number of records in one message, and on one page


class Operator(Value, frozen=True, kw_only=True):
    """A person or program that requests acts. Its role may be limited to cells and projects."""

    name: Text
    role: Role = ""
    known_by: Text = ""  # how the name was found: system user, token file, keystone, client, ...
    project: Text = ""  # project of the operator's token
    cells: ShortList[Text] = ()  # cells to which the role is limited; empty: no limit
    projects: ShortList[KeystoneId] = ()  # projects to which the role is limited; empty: no limit
    is_program: bool = False  # a client or service: its records are stored for a shorter time


class ActRecord(Value, frozen=True, kw_only=True):
    """The record of one act. A record with the outcome `started` is replaced by a later one with the same id.

    A record stays `started` if the process that executed the act ended before it knew the outcome.
    """

    id: Id
    at: Seconds
    operator: Operator
    interface: Interface
    through: Text = ""  # the command, page or URL pattern with which the act was requested
    origin: Text = ""  # the address or host name from which the operator acted
    request: Text = ""  # the id that all acts of one command or HTTP request share
    act: Text
    target: Text = ""
    name: Text = ""  # name of the target, if `target` is an id
    cell: Text = ""
    project: Text = ""  # project of the target
    asked: Cause = ""  # the request as JSON
    before: Cause = ""  # the parts of the target's state that differ afterwards, as JSON
    after: Cause = ""
    outcome: Outcome = "started"
    detail: Cause = ""  # why the act was refused or denied, or has failed
    targets: LongList[Text] = ()  # the ids of all targets, if the act has several
    # The request was delivered again: this record is only stored if its first delivery has left none.
    repeated: bool = False


class ActsRecorded(Message, frozen=True, kw_only=True):
    """Records for the audit trail; a repeated record changes nothing."""

    records: Annotated[tuple[ActRecord, ...], Meta(min_length=1, max_length=MOST_RECORDS)]


class FindActs(Message, frozen=True, kw_only=True):
    """A query for records of the audit trail that meet all given conditions, the latest first."""

    since: Seconds = 0.0
    until: Seconds = 0.0  # 0: now
    operator: Text = ""
    role: Text = ""
    interface: Text = ""
    act: Text = ""
    target: Text = ""  # id or name of the target, or id of one of several targets
    project: Text = ""  # project of the target or of the operator's token
    request: Text = ""
    outcome: Text = ""
    before: Annotated[  # `last` of the previous page
        str,
        Meta(
            pattern=r"^([0-9]{1,12}(\.[0-9]{1,20})? [0-9a-f-]{36})?" + END,
            description="`last` of the previous page",
        ),
    ] = ""
    limit: Annotated[int, Meta(ge=1, le=MOST_RECORDS)] = 100
    id: Annotated[  # the beginning of the id of an act, or of `request`
        str, Meta(pattern=r"^[0-9a-z-]{0,64}" + END, description="the beginning of an id")
    ] = ""


class ActsFound(Message, frozen=True, kw_only=True):
    """A page of recorded acts. `last` is the position from which the next page continues."""

    records: LongList[ActRecord]
    last: Text = ""  # empty: there are no further records
