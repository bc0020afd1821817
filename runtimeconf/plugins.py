"""
The plug-in registry: extensions that the core uses without naming them.

Built-in plug-ins are listed in tables here. Other distributions add plug-ins by entry points (`importlib.metadata`).
"""

from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any, Final, Generic, TypeVar

from runtimeconf.connector import Connector, Engine, SnapshotStore
from runtimeconf.model import LOCALPOD
from runtimeconf.store_kinds import StoreKind

T = TypeVar("T")


class PluginError(Exception):
    """A plug-in cannot be imported, or is not of its group's class. The message is for people."""


class Plugins(Mapping[str, T], Generic[T]):
    """
    The plug-ins of the entry point group *group*, by name. Each is imported on first access.

    *built_in* maps names to `module:attribute`. Other distributions cannot use these names or the *reserved* names. All
    plug-ins are instances of *kind*.
    """

    def __init__(self, group: str, kind: type[T], built_in: Mapping[str, str], reserved: Collection[str] = ()) -> None:
        self._group = group
        self._kind = kind
        self._built_in = built_in
        self._reserved = reserved
        self._loaded: dict[str, T] = {}

    def __getitem__(self, name: str) -> T:
        """
        Return the plug-in *name*.

        Raises:
            KeyError: There is no such plug-in.
            PluginError: The plug-in cannot be used.
        """
        if name not in self._loaded:
            where = self._built_in.get(name) or self._installed[name]
            try:
                found = imported(where)
            except Exception as exc:
                raise PluginError(f"{where} cannot be imported ({type(exc).__name__}: {exc})") from exc
            if not isinstance(found, self._kind):
                raise PluginError(f"{where} is not a {self._kind.__name__}")
            self._loaded[name] = found
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self._built_in or name in self._installed

    def __iter__(self) -> Iterator[str]:
        yield from self._built_in
        yield from self._installed

    def __len__(self) -> int:
        return len(self._built_in) + len(self._installed)

    def usable(self, name: str) -> T | None:
        """Return the plug-in *name*; None if it does not exist or cannot be used."""
        try:
            return self[name]
        except (KeyError, PluginError):
            return None

    @property
    def built_in(self) -> Mapping[str, T]:
        """The built-in plug-ins by name. Reading them imports nothing from other distributions."""
        return {name: self[name] for name in self._built_in}

    @cached_property
    def _installed(self) -> Mapping[str, str]:
        from importlib.metadata import entry_points  # noqa: PLC0415 (slow to import, and rarely needed)

        found = {entry.name: entry.value for entry in entry_points(group=self._group)}
        return {name: where for name, where in found.items() if name not in {*self._built_in, *self._reserved}}


def imported(where: str) -> Any:
    """Import the object at *where*, written as `module:attribute`."""
    module, _, attribute = where.partition(":")
    return getattr(import_module(module), attribute)


#: The connector of materialized views, which `from:` cannot name.
VIEW: Final = "view"

#: Connectors, by the text before the colon in `from:`.
CONNECTORS: Final = Plugins(
    "querykeep.connectors",
    Connector,
    {
        "file": "runtimeconf.files:FILE",
        **dict.fromkeys(("http", "https"), "connectors.http.params:HTTP"),
        "graphql": "connectors.graphql.params:GRAPHQL",
        "ftp": "connectors.ftp.params:FTP",
        "sftp": "connectors.sftp.params:SFTP",
        "s3": "connectors.s3.params:S3",
        **dict.fromkeys(("gs", "gcs"), "connectors.gcs.params:GCS"),
        **dict.fromkeys(("abfs", "abfss", "az"), "connectors.azure.params:ABFS"),
        "postgres": "connectors.postgres.params:POSTGRES",
        "mysql": "connectors.mysql.params:MYSQL",
        "mssql": "connectors.mssql.params:MSSQL",
        "sqlite": "connectors.sqlite.params:SQLITE",
        "duckdb": "connectors.duckdb.params:DUCKDB",
        "flightsql": "connectors.flightsql.params:FLIGHTSQL",
        "spark": "cluster.params:SPARK",
        **dict.fromkeys(("delta", "delta_lake"), "connectors.delta.params:DELTA"),
        "iceberg": "connectors.iceberg.params:ICEBERG",
    },
    reserved=frozenset({VIEW, LOCALPOD}),
)

#: Secret stores, by the text before the colon in a store's `from:`.
SECRET_STORES: Final = Plugins(
    "querykeep.secret_stores",
    StoreKind,
    {
        "env": "runtimeconf.store_kinds:ENV",
        "file": "runtimeconf.store_kinds:FILE",
        "keyring": "runtimeconf.store_kinds:KEYRING",
        "kubernetes": "secretstores.kubernetes:KUBERNETES",
        "vault": "secretstores.vault:VAULT",
        "aws_secrets_manager": "secretstores.aws_secrets_manager:AWS_SECRETS_MANAGER",
    },
)

#: Engines, by the text before the colon in the `from:` of `runtime.engine`.
ENGINES: Final = Plugins(
    "querykeep.engines",
    Engine,
    {
        "sc": "cluster.config:ENGINE",
    },
)

#: Snapshot stores, by the text before the colon in `runtime.snapshots.location`.
SNAPSHOT_STORES: Final = Plugins(
    "querykeep.snapshot_stores",
    SnapshotStore,
    {
        "s3": "nodes.params:S3",
    },
)


def secret_params(connector: str) -> frozenset[str]:
    """Return the names of the parameters of *connector* that are secret. A materialized view has no parameters."""
    declared = () if connector == VIEW else CONNECTORS[connector].params.declared.values()
    return frozenset(param.name for param in declared if param.is_secret)
