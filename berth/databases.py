"""The packages that have tables in each worker's database, as `bus.sql.migrations` names them."""

from berth.features import features, folder_of, package_of, processes

OWN = {  # by worker
    "placement": "placement_worker",
    "scheduler": "scheduler_worker",
    "conductor": "cell_conductor",
    "rest": "berth.rest",
    **{process.name: package_of(feature) for feature, process in processes() if process.has_database},
}


def packages(worker: str) -> tuple[str, ...]:
    """Return the packages with tables in the database of a worker: its own package, and the features that
    have migrations for this database.
    """
    with_tables = (feature for feature in features() if (folder_of(feature) / "migrations" / worker).is_dir())
    return (OWN[worker], *(f"{package_of(feature)}/{worker}" for feature in with_tables))
