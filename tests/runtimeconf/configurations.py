"""Configurations as text, tables of invalid ones with their faults, and the types of the fixtures that load them."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from runtimeconf.errors import ConfigFault
from runtimeconf.model import DatasetConfig, RuntimeConfig

#: A long random key that causes no warning.
KEY = "Zk3vT9qLm2XwR7bN4cYh8dPf"

#: Writes a text to `runtime.yaml` and loads it: see the fixture `load_text`.
Load = Callable[..., RuntimeConfig]
#: The same with a text that must have faults, which it returns: see the fixture `faults`.
Faults = Callable[..., tuple[ConfigFault, ...]]
#: The same with a text that must have one fault, which it returns as `line: path: message`.
Fault = Callable[..., str]


#: The hint about a reference in a value where none is resolved.
NO_REFERENCE = (
    "(secret references are resolved only in API keys, the params of datasets, snapshots and engine, and "
    "traces.headers)"
)


def with_keys(items: str, *, enabled: str = "true") -> str:
    """Return a configuration with the `keys` *items*, one per line, beginning on line 6."""
    listed = "".join(f"        {line}\n" for line in items.splitlines())
    return f"runtime:\n  auth:\n    api-key:\n      enabled: {enabled}\n      keys:\n{listed}"


def fault_cases(table: str) -> list[Any]:
    """
    Return parameters (text, faults) from a table.

    A case is perhaps a comment, the YAML, and one line `=> line: path: message` for each fault.
    """
    found = []
    for case, faults in re.findall(r"((?:(?!=> ).*\n)+)((?:=> .*\n)+)", table.lstrip()):
        text = re.sub("^# .*\n", "", case)
        found.append(pytest.param(text, re.findall("=> (.*)", faults), id=case.partition("\n")[0]))
    return found


#: The value of every secret in `dataset_text`.
SECRET = "canary-3bZ"


def dataset_text(source: str, params: Mapping[str, str]) -> str:
    """Return a configuration with one dataset."""
    return json.dumps({"datasets": [{"from": source, "name": "d"} | ({"params": dict(params)} if params else {})]})


def load_dataset(load_text: Load, source: str, params: Mapping[str, str]) -> DatasetConfig:
    """Load a configuration with one dataset; `${ env:TOKEN }` is SECRET."""
    (dataset,) = load_text(dataset_text(source, params), {"TOKEN": SECRET}).datasets
    return dataset


POSTGRES = {"pg_host": "db", "pg_db": "shop", "pg_user": "reader", "pg_pass": "${ secrets:token }"}
MYSQL = {"mysql_host": "db", "mysql_db": "shop", "mysql_user": "reader", "mysql_pass": "${ secrets:token }"}
GRAPHQL = {"graphql_query": "{ a(first: 2) { b } }", "json_pointer": "/data/a"}
MSSQL = {"mssql_host": "db", "mssql_username": "reader", "mssql_password": "${ secrets:token }"}
FLIGHTSQL = {"flightsql_endpoint": "grpc://127.0.0.1:50051"}
#: The parameters that a connector requires.
REQUIRED: dict[str, dict[str, str]] = {
    "postgres": POSTGRES,
    "mysql": MYSQL,
    "mssql": MSSQL,
    "abfss": {"abfs_skip_signature": "true"},
    "sqlite": {"sqlite_table": "t"},
    "duckdb": {"duckdb_open": "a.duckdb"},
    "flightsql": FLIGHTSQL,
    "graphql": GRAPHQL,
    "sftp": {"sftp_user": "u", "sftp_pass": "${ secrets:token }"},
    "spark": {"spark_remote": "sc://127.0.0.1:15002"},
}


def required(source: str) -> dict[str, str]:
    """Return the parameters that the connector of *source* requires."""
    return REQUIRED.get(source.partition(":")[0], {})


def env_places(directory: Path, name: str) -> str:
    """Return where a secret was looked for in the environment and in *directory*, which has no `.env`."""
    return (
        f"the variables {name}, {name.upper()}, SPICE_{name} and SPICE_{name.upper()} in the environment, "
        f"{directory}/.env.local (no such file) and {directory}/.env (no such file)"
    )
