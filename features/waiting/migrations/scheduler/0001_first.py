"""The first migration of waiting: the queue of requests, and the schedulers that own them."""

import sqlalchemy as sa

from bus.sql.schema import columns, index, table

revision = "0001_first"
down_revision = None


def upgrade() -> None:
    text, evaluated = sa.Text, "kind <> ''"
    table(
        "queued",  # requests that were not evaluated (`kind` is empty), or that lack something
        columns(text, "request"),
        columns(sa.BigInteger, "digest"),  # of the message of a request not evaluated; else 0
        columns(text, "owner"),  # the owning scheduler
        columns(text, "kind", server_default=""),  # the equivalence class
        columns(sa.Integer, "priority"),
        columns(sa.Double, "since"),  # when the message was sent, or from when on the request waits
        columns(sa.Double, "until", server_default="0"),
        columns(text, "project"),
        columns(text, "flavor", server_default=""),
        columns(sa.Integer, "instances", server_default="0"),
        columns(
            sa.BigInteger, "seen", server_default="0"
        ),  # placement's last change number at the evaluation
        # of a request not evaluated: its message in its envelope; else the BuildRequested
        columns(text, "message"),
        columns(text, "lacks", "wakes", "decision", server_default=""),
        columns(text, "wakes_on", server_default=""),  # key of commits that may help a refused claim
        columns(text, "cancelled", server_default=""),  # reason for a cancellation, until the owner reads it
        columns(text, "story", server_default=""),  # tracing context of the request's message
        columns(text, "move", server_default=""),  # what the subject does, such as `migrate`; empty: a build
        columns(text, "subject", server_default=""),  # of a request that boots no instance
        # number of schedulers that ended while they evaluated the request
        columns(sa.Integer, "strikes", server_default="0"),
        keys=2,
    )
    index("queued", "queued_cancelled", "owner", where="cancelled <> ''")
    index("queued", "queued_owner", "owner", where=evaluated)
    of_project = ("owner", "project", "priority DESC", "since", "request", "digest")
    index("queued", "queued_new", *of_project, where="kind = ''")
    index("queued", "queued_line", "kind", "priority DESC", "since", where=evaluated)
    table("weights", columns(sa.String(255), "project"), columns(sa.Integer, "weight"))  # "": the default
    table("queued_builds", columns(text, "build", "request"))
    index("queued_builds", "queued_builds_request", "request")
    table("subjects", columns(text, "instance", "request"))  # at most one request of a subject waits
    index("subjects", "subjects_request", "request")
    table(
        "schedulers",
        columns(text, "owner"),
        columns(sa.BigInteger, "beat"),  # grows with every heartbeat
        columns(sa.BigInteger, "rescued"),
        columns(text, "starts", server_default=""),  # how fast the scheduler's queues advance
        columns(text, "served", server_default=""),  # size of the recently served requests by project
        columns(text, "holds", server_default=""),  # hosts that the scheduler reserves for waiting requests
    )
