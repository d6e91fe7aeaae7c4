"""Declares the feature keystone."""

from bus.feature import Feature
from features.keystone.settings import KeystoneSettings

FEATURE = Feature(
    name="keystone",
    says="checks tokens at an OpenStack Keystone, signs its users in, and edits its catalogue",
    adds=("authentication",),
    settings=KeystoneSettings,
    clouds=("placement_cloud",),
    authentication="keystone",
    commands={"openstack register": "commands"},
)
