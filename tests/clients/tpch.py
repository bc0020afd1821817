"""The data and the queries of TPC-H."""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

TABLES: Final = ("customer", "lineitem", "nation", "orders", "part", "partsupp", "region", "supplier")

_TEXT: Final = (Path(__file__).parent / "data" / "tpch.sql").read_text(encoding="utf-8")

#: The queries by name: Q1 to Q22.
QUERIES: Final[Mapping[str, str]] = dict(re.findall(r"^-- (Q\d+)\n(.*?)(?=^-- Q|\Z)", _TEXT, re.MULTILINE | re.DOTALL))


def generate(directory: Path, scale_factor: float) -> None:
    """Write one Parquet file for each table."""
    program = Path(sys.executable).with_name("tpchgen-cli")
    command: list[str | Path] = [program, "parquet", "-s", str(scale_factor), "--output-dir", directory]
    subprocess.run(command, check=True, capture_output=True)
