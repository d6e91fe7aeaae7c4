"""`berth openstack`: registers berth's Placement API in the service catalogue of a cloud."""

from dataclasses import dataclass

from berth.kit import BadSetting, Cli, Commands, option
from features.keystone.settings import KeystoneSettings
from ironic_sync.extension import Access, cloud_access

INTERFACES = ("public", "internal", "admin")

commands = Commands()


@dataclass(frozen=True)
class RegisterOptions:
    url: str = option("", "Where clients reach the Placement API, on every interface.", metavar="URL")
    public: str = option("", "The URL of this interface, instead of --url.", metavar="URL")
    internal: str = option("", "The URL of this interface, instead of --url.", metavar="URL")
    admin: str = option("", "The URL of this interface, instead of --url.", metavar="URL")
    region: str = option("", "Region of the endpoints (default: that of the cloud).", metavar="NAME")
    name: str = option("placement", "Name of the service, if no service of its type exists yet.")
    cloud: str = option("", "Administrator in clouds.yaml (default: placement_cloud, or the OS_* variables).")
    apply: bool = option(False, "Make the changes; without this option they are only shown.")


@commands.command("register")
async def register_command(cli: Cli, options: RegisterOptions) -> None:
    """Register the Placement API in Keystone's catalogue, so that OpenStack's services use this berth.

    The command prints each entry with its previous URL; run it again with that URL to undo it. Clients use a
    changed URL when they read the catalogue again, at the latest after their token has expired.
    """
    from features.keystone.registering import Catalogue  # an HTTP client, which loads slowly

    urls = {interface: getattr(options, interface) or options.url for interface in INTERFACES}
    urls = {interface: url.rstrip("/") for interface, url in urls.items() if url}
    for url in urls.values():
        if not url.startswith(("http://", "https://")):
            raise BadSetting(f"{url!r} is no URL: it begins with http:// or https://")
    if not urls:
        raise BadSetting("give with --url the address at which clients reach the Placement API")
    access = _administrator(options.cloud or cli.settings.of(KeystoneSettings).cloud or "envvars")
    region = options.region or access.region
    if not region:
        raise BadSetting("give the region of the endpoints with --region: the cloud's entry has no region")
    async with Catalogue(access) as catalogue:
        entries = await catalogue.compare(options.name, region, urls)
        for entry in entries:
            facts = {"interface": entry.interface, "wanted": entry.wanted, "found": entry.found}
            cli.value(facts, entry.sentence, "bold" if entry.differs else None)
        changes = sum(entry.differs for entry in entries)
        if changes and options.apply:
            await catalogue.apply(entries, region)
    if not cli.as_json:
        done = "done" if options.apply else "--apply makes them"
        cli.line(f"{changes} changes in region {region}: {done}" if changes else "nothing to change", "dim")


def _administrator(cloud: str) -> Access:
    try:
        access = cloud_access(cloud)
    except ValueError as problem:
        raise BadSetting(str(problem)) from None
    if not access.has_tokens:
        raise BadSetting(f"cloud {cloud!r}: its auth_type {access.auth_type} is not of Keystone")
    return access
