"""Types as MySQL declares them, and MariaDB does not."""

import pyarrow as pa
import pytest

from connectors.databases import converted
from connectors.mysql.types import column_of
from datasources.errors import SourceError


@pytest.mark.parametrize(
    ("declared", "text", "kind", "engine_type"),
    [
        ("int unsigned", b"4294967295", pa.uint32(), None),
        ("bigint unsigned zerofill", b"00000000000000000007", pa.uint64(), None),
        ("year", b"2024", pa.int16(), None),
        ("json", b'{"a": "\xc3\xa9"}', pa.string(), "JSON"),
        ("decimal(38,0)", b"1", pa.decimal128(38, 0), None),
        ("decimal(39,0)", b"1", pa.string(), None),
    ],
)
def test_the_declared_type_decides(declared: str, text: bytes, kind: pa.DataType, engine_type: str | None) -> None:
    column = column_of("c`1", declared)

    assert column.convert is not None
    converted = column.convert(pa.array([text, None], pa.binary()))
    assert (converted.type, converted.null_count, column.engine_type) == (kind, 1, engine_type)
    assert column.expression == "`c``1`"


@pytest.mark.parametrize("declared", ["geomcollection", "vector(3)", "xmltype", ""])
def test_an_unknown_type_is_refused_once_it_is_asked_for(declared: str) -> None:
    column = column_of("c", declared)

    assert column.convert is not None
    with pytest.raises(SourceError, match="The column 'c' has the type"):
        column.convert(pa.array([], pa.binary()))


@pytest.mark.parametrize("unfit", [0, 1, 17, 99])
def test_the_row_of_an_unfit_value_is_counted_over_all_batches(unfit: int) -> None:
    days = [b"2024-01-01"] * unfit + [b"0000-00-00"] * 2 + [None] * 10
    batches = [pa.record_batch({"d": pa.array(part, pa.binary())}) for part in ([b"2024-01-01"] * 50, days)]
    reader = converted(pa.RecordBatchReader.from_batches(batches[0].schema, batches), [column_of("d", "date")])

    with pytest.raises(SourceError, match=rf"^Row {51 + unfit} of the column 'd' has an invalid calend"):
        reader.read_all()
