"""Declares the feature quotas."""

from bus.decisions import OF_THE_WHOLE, ReasonTable
from bus.feature import Feature, PageEntry
from features.quotas.settings import QuotaSettings

FEATURE = Feature(
    name="quotas",
    says="limits how much the instances of a project may hold",
    adds=("messages", "placement", "http", "pages"),
    settings=QuotaSettings,
    clouds=("quota_cloud",),
    commands={"project quota": "commands"},
    command_groups={
        "project quota": "Limits for what the instances of a project may hold (features/quotas/README.md)."
    },
    meters=(("features.quotas.keystone_limits", "placement"),),
    pages={"/projects": PageEntry("Projects", "Policy")},
    reasons=(ReasonTable(OF_THE_WHOLE, {"quota": "the project would exceed its quota"}),),
    wakes={"quota": "the project uses less, or its quota is raised"},
)
