"""Finds the class that reads a dataset: the connector's class, or the class for materialized views."""

import sys
from typing import Final

from datasources.sources.source import Source
from runtimeconf.model import DatasetConfig
from runtimeconf.plugins import CONNECTORS, VIEW, imported

_VIEW: Final = "datasources.sources.view:ViewSource"


def import_source(connector: str) -> bool:
    """Import the module of *connector* and its library. Return whether they were not yet imported."""
    where = _VIEW if connector == VIEW else CONNECTORS[connector].source
    is_new = where.partition(":")[0] not in sys.modules
    imported(where)
    return is_new


def is_local(dataset: DatasetConfig) -> bool:
    """Return whether *dataset* is read from files of this machine."""
    return dataset.connector != VIEW and CONNECTORS[dataset.connector].is_local


def source_of(dataset: DatasetConfig) -> Source:
    """Return the source that the dataset's `from:` declares."""
    source: Source
    if dataset.connector == VIEW:
        source = imported(_VIEW)(dataset)
    else:
        connector = CONNECTORS[dataset.connector]
        source = imported(connector.source)(dataset, connector.params.of(dataset.params))
    return source
