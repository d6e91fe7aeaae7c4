"""Declares the feature quotas."""

from bus.feature import Feature
from features.quotas.settings import QuotaSettings

FEATURE = Feature(
    name="quotas",
    says="limits how much the instances of a project may hold",
    settings=QuotaSettings,
    clouds=("quota_cloud",),
)
