"""
The connectors that `from:` of a dataset may name, and what each takes.

This room knows how a connector is written in the YAML; how its data is read is `datasets.sources`.
"""

from __future__ import annotations

from collections.abc import Mapping

from runtimeconf.connectors.connector import Connector, Param
from runtimeconf.connectors.files import FILE

__all__ = ["CONNECTORS", "Connector", "Param", "all_params"]

#: By the text before the colon of `from:`.
CONNECTORS: Mapping[str, Connector] = {connector.name: connector for connector in (FILE,)}


def all_params() -> tuple[Param, ...]:
    """Every parameter of every connector; connectors that share a parameter share its declaration."""
    return tuple({param.name: param for connector in CONNECTORS.values() for param in connector.params}.values())
