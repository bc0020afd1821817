import os
import shutil
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from datasources.snapshots.snapshot import Order
from runtimeconf.model import DatasetConfig
from tests.connectors.delta.delta_tables import HandMade, field, mapped
from tests.datasources.sources.loads import load, table
from tests.datasources.support import builder, deadline, refusal, rows

OUTSIDE = "references a file outside the table"


def delta(directory: Path, text: str = "t", **more: Any) -> DatasetConfig:
    return table(directory, f"delta:{text}", **more)


def write(directory: Path, mode: Literal["append", "overwrite"] = "append", **columns: Any) -> None:
    options = columns.pop("options", {})
    write_deltalake((directory / "t").as_uri(), pa.table(columns), mode=mode, **options)


# --- versions ---------------------------------------------------------------------------------------------------------


def test_checkpoints_are_read_with_many_commits_after_them_and_with_sidecars(tmp_path: Path) -> None:
    made = HandMade(tmp_path / "t", [field("n", "long")])
    for number in range(5):
        made.commit(made.add(f"{number}.parquet", pa.table({"n": [number]})))
    DeltaTable(tmp_path / "t").create_checkpoint()
    for number in range(5, 45):
        made.commit(made.add(f"{number}.parquet", pa.table({"n": [number]})))
    (made.log / f"{0:020}.json").unlink()
    split = HandMade(tmp_path / "u", [field("n", "long")], features=["v2Checkpoint"])
    split.checkpoint_v2(split.add("a.parquet", pa.table({"n": [1, 2]})))
    split.commit(split.add("b.parquet", pa.table({"n": [3]})))

    assert load(tmp_path, delta(tmp_path), "SELECT count(*), sum(n) FROM d") == [(45, 990)]
    assert load(tmp_path, delta(tmp_path, "u"), "FROM d ORDER BY n") == [(1,), (2,), (3,)]


# --- values -----------------------------------------------------------------------------------------------------------


def test_old_timestamps_of_spark_are_read_whatever_the_year(tmp_path: Path) -> None:
    made = HandMade(tmp_path / "t", [field("at", "timestamp")])
    moments = [datetime(1, 1, 1), datetime(2024, 1, 1, 0, 0, 0, 1), datetime(9999, 12, 31)]  # noqa: DTZ001
    old = {"use_deprecated_int96_timestamps": True}
    made.commit(made.add("a.parquet", pa.table({"at": pa.array(moments, pa.timestamp("us"))}), options=old))

    found = load(tmp_path, delta(tmp_path), 'SELECT "at"::TIMESTAMP FROM d ORDER BY "at"')

    assert found == [(moment,) for moment in moments]


@pytest.mark.parametrize(
    ("year", "nanoseconds"),
    [(2024, 1), (2024, 999), (1969, 1), (2024, 1000)],
)
@pytest.mark.parametrize(("name", "is_nested"), [("at", False), ("at", True), ("a.t", False)])
def test_an_old_timestamp_below_microseconds_is_refused(
    tmp_path: Path, year: int, nanoseconds: int, name: str, is_nested: bool
) -> None:
    since_1970 = (year - 1970) * 365 * 86_400_000_000_000
    values = pa.array([None, *[since_1970] * 20_000, since_1970 + nanoseconds], pa.int64()).view(pa.timestamp("ns"))
    kind: Any = "timestamp"
    if is_nested:
        kind = {"type": "struct", "fields": [field("x", "timestamp")]}
        values = pa.StructArray.from_arrays([values], ["x"])
    made = HandMade(tmp_path / "t", [field(name, kind)])
    old = {"use_deprecated_int96_timestamps": True}
    made.commit(made.add("a.parquet", pa.table({name: values}), options=old))

    if nanoseconds % 1000:
        assert refusal(tmp_path, delta(tmp_path)) == (
            f"The file 'a.parquet' of 't' cannot be read: the column '{name}' has a time with sub-microsecond digits."
        )
    else:
        assert load(tmp_path, delta(tmp_path), "SELECT count(*) FROM d") == [(len(values),)]


def test_values_of_partitions_come_from_the_log(tmp_path: Path) -> None:
    kinds = {"l": "long", "d": "date", "e": "decimal(10,2)", "t": "timestamp", "s": "string"}
    fields = [field("n", "long"), *(field(name, kind) for name, kind in kinds.items())]
    made = HandMade(tmp_path / "t", fields, partition_by=list(kinds))
    values = {"l": "7", "d": "2024-01-02", "e": "1.25", "t": "2024-01-02 03:04:05.678901", "s": "a/b ü%"}
    none = dict.fromkeys(kinds) | {"s": ""}
    rows = pa.table({"n": [1]})
    made.commit(
        made.add("l=7/a b.parquet", rows, partitionValues=values) | {},
        made.add("x.parquet", pa.table({"n": [2]}), partitionValues=none),
    )

    found = load(tmp_path, delta(tmp_path), "SELECT * REPLACE (t::TIMESTAMP AS t) FROM d ORDER BY n")

    moment = datetime(2024, 1, 2, 3, 4, 5, 678901)  # noqa: DTZ001
    assert found == [(1, 7, date(2024, 1, 2), Decimal("1.25"), moment, "a/b ü%"), (2, *[None] * 5)]


def test_dates_that_python_does_not_know_are_read(tmp_path: Path) -> None:
    days = pa.array([2932897, -719163], pa.int32()).view(pa.date32())
    write(tmp_path, d=days[:1], p=days[1:], options={"partition_by": ["p"]})

    assert load(tmp_path, delta(tmp_path), "SELECT COLUMNS(*)::VARCHAR FROM d") == [("10000-01-01", "0001-12-31 (BC)")]


def test_a_binary_partition_that_readers_understand_differently_is_refused(tmp_path: Path) -> None:
    write(tmp_path, n=[1], p=[b"a"], options={"partition_by": ["p"]})

    assert "binary partition columns whose values are escaped" in refusal(tmp_path, delta(tmp_path))


# --- schemas that changed ---------------------------------------------------------------------------------------------


def test_columns_that_came_later_are_null_in_older_files(tmp_path: Path) -> None:
    inner = {"type": "struct", "fields": [field("x", "long"), field("new", "string")]}
    kinds = [
        field("n", "long"),
        field("s", inner),
        field("l", {"type": "array", "elementType": inner, "containsNull": True}),
    ]
    made = HandMade(tmp_path / "t", [*kinds, field("late", "decimal(9,2)")])
    old = pa.table({"n": [1, 2], "s": [{"x": 1}, None], "l": [[{"x": 1}, None], None]})
    made.commit(made.add("a.parquet", old))

    found = load(tmp_path, delta(tmp_path), "FROM d ORDER BY n")

    inside = {"x": 1, "new": None}
    assert found == [(1, inside, [inside, None], None), (2, None, None, None)]


def test_columns_that_were_widened_take_the_values_of_older_files(tmp_path: Path) -> None:
    kinds = {"a": "long", "b": "double", "c": "double", "d": "decimal(20,4)", "e": "timestamp_ntz"}
    made = HandMade(tmp_path / "t", [field(*kind) for kind in kinds.items()], features=["typeWidening", "timestampNtz"])
    old = {"a": pa.int8(), "b": pa.int32(), "c": pa.float32(), "d": pa.decimal128(10, 2), "e": pa.date32()}
    values = {"a": [1], "b": [2], "c": [0.5], "d": [Decimal("1.25")], "e": [date(2024, 1, 1)]}
    made.commit(made.add("a.parquet", pa.table(values, schema=pa.schema(old))))

    found = load(tmp_path, delta(tmp_path))

    assert found == [(1, 2.0, 0.5, Decimal("1.2500"), datetime(2024, 1, 1))]  # noqa: DTZ001


def test_files_that_have_the_same_values_in_other_types_are_read(tmp_path: Path) -> None:
    texts = {"a": pa.large_string(), "b": pa.dictionary(pa.int8(), pa.string()), "c": pa.binary()}
    kinds = {**dict.fromkeys(texts, "string"), "d": "binary", "e": "binary", "f": "long"}
    numbers = {"type": "array", "elementType": "long", "containsNull": True}
    made = HandMade(tmp_path / "t", [*(field(*kind) for kind in kinds.items()), field("l", numbers)])
    file = pa.table(
        {
            **{name: pa.array(["x"]).cast(kind) for name, kind in texts.items()},
            "d": pa.array([b"ab"], pa.large_binary()),
            "e": pa.array([b"ab"], pa.binary(2)),
            "f": pa.nulls(1),
            "l": pa.array([[1, None]], pa.large_list(pa.int32())),
        }
    )
    made.commit(made.add("a.parquet", file))

    assert load(tmp_path, delta(tmp_path)) == [("x", "x", "x", b"ab", b"ab", None, [1, None])]


@pytest.mark.parametrize("mode", ["name", "id"])
def test_columns_that_were_renamed_are_found(tmp_path: Path, mode: str) -> None:
    inner = {"type": "struct", "fields": [mapped("x", "long", 3)]}
    fields = [mapped("A b", "long", 1), mapped("st", inner, 2), mapped("p", "long", 4)]
    made = HandMade(tmp_path / "t", fields, reader=2, partition_by=["p"], delta_columnMapping_mode=mode)
    names = ("col-1", "col-2", "col-3") if mode == "name" else ("xx", "yy", "zz")

    def described(name: str, kind: pa.DataType, number: int) -> pa.Field:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})

    struct = pa.struct([described(names[2], pa.int64(), 3)])
    schema = pa.schema([described(names[1], struct, 2), described(names[0], pa.int64(), 1)])
    made.commit(made.add("a.parquet", pa.table([[{names[2]: 5}], [1]], schema=schema), partitionValues={"col-4": "9"}))

    assert load(tmp_path, delta(tmp_path)) == [(1, {"x": 5}, 9)]

    if mode == "id":
        made.commit(made.add("b.parquet", pa.table({"col-1": [1]}), partitionValues={"col-4": "9"}))
        assert "its columns have no IDs" in refusal(tmp_path, delta(tmp_path))


# --- what is not read rather than read wrongly ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        pytest.param({"n": ["1"]}, "the column 'n' has the type string, but the table has int64", id="text"),
        pytest.param({"n": [1.5]}, "the column 'n' has the type double, but the table has int64", id="fraction"),
        pytest.param({"n": [[1]]}, "the column 'n' has the type list", id="list"),
        pytest.param({"N": [1]}, "it has the column 'N' where the table has 'n'", id="case"),
        pytest.param({"m": [1]}, "it lacks the column 'n', which cannot be null", id="missing"),
        pytest.param({"n": [1, None]}, "the column 'n' has nulls", id="null"),
        pytest.param({"n": pa.array([2**64 - 1], pa.uint64())}, "a value does not match", id="large"),
    ],
)
def test_a_file_that_is_not_what_the_table_says_is_refused(tmp_path: Path, rows: dict[str, Any], said: str) -> None:
    made = HandMade(tmp_path / "t", [field("n", "long", nullable=False)])
    made.commit(made.add("a.parquet", pa.table(rows)))

    sentence = refusal(tmp_path, delta(tmp_path))

    assert sentence.startswith("The file 'a.parquet' of 't' cannot be read: ")
    assert said in sentence


def test_a_field_that_differs_in_case_is_refused_at_any_depth(tmp_path: Path) -> None:
    inner = {"type": "struct", "fields": [field("x", "long")]}
    made = HandMade(tmp_path / "t", [field("l", {"type": "array", "elementType": inner, "containsNull": True})])
    made.commit(made.add("a.parquet", pa.table({"l": [[{"X": 5}]]})))

    assert "it has the field 'X' of 'l' where the table has 'x'" in refusal(tmp_path, delta(tmp_path))


@pytest.mark.parametrize(
    "path",
    [
        "file:///etc/passwd",
        "/etc/passwd",
        "../u/a.parquet",
        "x/../../u/a.parquet",
        "%2e%2e/u/a.parquet",
        "..%2Fu%2Fa.parquet",
        "..\\u\\a.parquet",
        ".\t./u/a.parquet",
        "http://169.254.169.254/a.parquet",
        "s3://other/a.parquet",
    ],
)
def test_a_path_that_leads_out_of_the_table_is_refused(tmp_path: Path, path: str) -> None:
    HandMade(tmp_path / "u", []).put("a.parquet", pa.table({"n": [666]}))
    made = HandMade(tmp_path / "t", [field("n", "long")])
    made.commit(made.add(path))

    assert OUTSIDE in refusal(tmp_path, delta(tmp_path))


def test_a_deletion_vector_or_a_sidecar_outside_of_the_table_is_refused(tmp_path: Path) -> None:
    absolute = {"storageType": "p", "pathOrInlineDv": "file:///dev/zero"}
    for name, given in {
        "absolute": absolute | {"offset": 1, "sizeInBytes": 9, "cardinality": 1},
        "prefix": None,
    }.items():
        made = HandMade(tmp_path / name, [field("n", "long")], features=["deletionVectors"])
        vector = given or made.deletion_vector([0], "..")
        made.commit(made.add("a.parquet", pa.table({"n": [1, 2]}), deletionVector=vector))

        assert OUTSIDE in refusal(tmp_path, delta(tmp_path, name))

    made = HandMade(tmp_path / "sidecar", [field("n", "long")], features=["v2Checkpoint"])
    made.checkpoint_v2(made.add("a.parquet"), sidecar="../../../out.parquet", place=str(tmp_path / "out.parquet"))
    assert OUTSIDE in refusal(tmp_path, delta(tmp_path, "sidecar"))


def test_links_pipes_and_missing_files_are_refused(tmp_path: Path) -> None:
    made = HandMade(tmp_path / "t", [field("n", "long")])
    HandMade(tmp_path / "u", []).put("a.parquet", pa.table({"n": [666]}))
    made.commit(made.add("sub/a.parquet"))
    dataset = delta(tmp_path)
    assert refusal(tmp_path, dataset) == "'sub/a.parquet' of 't' cannot be read: it does not exist."

    (tmp_path / "t/sub").symlink_to(tmp_path / "u")
    assert refusal(tmp_path, dataset) == "'sub/a.parquet' of 't' is a link to a file outside the table."
    (tmp_path / "t/sub").unlink()

    (tmp_path / "t/sub").mkdir()
    os.mkfifo(tmp_path / "t/sub/a.parquet")
    assert refusal(tmp_path, dataset) == "'sub/a.parquet' of 't' is not a regular file."
    (tmp_path / "t/sub/a.parquet").unlink()

    (tmp_path / "t/sub/a.parquet").write_bytes((tmp_path / "u/a.parquet").read_bytes()[:-9])
    assert "it is damaged" in refusal(tmp_path, dataset)


def cut_checkpoint(made: HandMade) -> None:
    DeltaTable(made.directory).create_checkpoint()
    (checkpoint,) = made.log.glob("*.checkpoint.parquet")
    checkpoint.write_bytes(checkpoint.read_bytes()[:-20])


def remove_commit(made: HandMade) -> None:
    made.commit()
    (made.log / f"{1:020}.json").unlink()


def far_commit(made: HandMade) -> None:
    (made.log / f"{10**19}.json").write_text("{}")


DAMAGE: dict[str, tuple[Callable[[HandMade], object], str]] = {
    "checkpoint": (cut_checkpoint, "damaged"),
    "gap": (remove_commit, "The log of 't' is missing version 1."),
    "far": (far_commit, "The log of 't' is missing version 2."),
    "json": (lambda made: made.put_commit("{nope"), "'_delta_log/00000000000000000001.json' of 't' is damaged."),
    "list": (lambda made: made.put_commit("[1]"), "is damaged."),
    "utf-16": (lambda made: made.put_commit("\ufeff".encode("utf-16").decode("latin-1")), "damaged"),
    "depth": (lambda made: made.put_commit("[" * 100_000), "is damaged."),
    "twice": (lambda made: made.put_commit('{"add":{"path":"a","path":"../u"}}'), "is damaged."),
    "action": (lambda made: made.put_commit('{"add":{"path":1}}'), "damaged"),
    "schema": (lambda made: made.commit({"metaData": {**made.head[1]["metaData"], "schemaString": "{}"}}), "damaged"),
    "huge": (lambda made: made.put_commit('{"commitInfo":{"x":"' + "x" * (17 * 1024 * 1024) + '"}}'), "is larger than"),
    "absent": (lambda made: shutil.rmtree(made.log), "'t' is not a Delta table: it has no _delta_log."),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_log_is_refused(tmp_path: Path, kind: str) -> None:
    made = HandMade(tmp_path / "t", [field("n", "long")])
    made.commit(made.add("a.parquet", pa.table({"n": [1]})))
    damage, said = DAMAGE[kind]
    damage(made)

    assert said in refusal(tmp_path, delta(tmp_path))


def test_deleted_rows_are_left_out(tmp_path: Path) -> None:
    made = HandMade(tmp_path / "t", [field("n", "long")], features=["deletionVectors"])
    many = pa.table({"n": list(range(40_000))})
    gone = [0, 7, 20_000]
    first = made.add("a b.parquet", many, deletionVector=made.deletion_vector(gone, "pre-fix"))
    made.commit(first, made.add("b.parquet", pa.table({"n": [-1]})))

    found = load(tmp_path, delta(tmp_path), "SELECT count(*), sum(n) FROM d")

    assert found == [(39_998, sum(range(40_000)) - 20_007 - 1)]


@pytest.mark.parametrize("kind", ["long", "timestamp_ntz", "decimal(10,2)"])
def test_a_feature_that_no_column_uses_is_ignored(tmp_path: Path, kind: str) -> None:
    variants = ["variantType", "variantType-preview", "variantShredding", "variantShredding-preview"]
    features = [*variants, "timestampNtz", "timestampNanos", "vacuumProtocolCheck"]
    nested = {"type": "map", "keyType": "string", "valueType": kind, "valueContainsNull": True}
    made = HandMade(tmp_path / "t", [field("n", "long"), field("x", kind), field("m", nested)], features=features)
    made.commit(made.add("a.parquet", pa.table({"n": [1]})))

    assert load(tmp_path, delta(tmp_path)) == [(1, None, None)]


@pytest.mark.parametrize("property_", ["delta.enableDeletionVectors", "delta.appendOnly"])
def test_a_table_whose_properties_the_library_changed_is_read(tmp_path: Path, property_: str) -> None:
    write(tmp_path, at=pa.array([datetime(2024, 1, 1)], pa.timestamp("us")))  # noqa: DTZ001
    written = DeltaTable(tmp_path / "t")
    # From then on the library says that the table may have variants.
    written.alter.set_table_properties({property_: "true"})
    assert "variantType" in (written.protocol().reader_features or ())

    assert load(tmp_path, delta(tmp_path)) == [(datetime(2024, 1, 1),)]  # noqa: DTZ001


@pytest.mark.parametrize("in_checkpoint", [False, True])
def test_rows_are_left_out_whatever_else_the_table_may_use(tmp_path: Path, in_checkpoint: bool) -> None:
    widened = field("n", "long") | {"metadata": {"delta.typeChanges": [{"fromType": "integer", "toType": "long"}]}}
    features = ["deletionVectors", "typeWidening", "vacuumProtocolCheck", "variantType", "variantShredding-preview"]
    made = HandMade(tmp_path / "t", [widened], features=features)
    old = pa.table({"n": pa.array([1, 2, 3], pa.int32())})
    made.commit(made.add("a.parquet", old, deletionVector=made.deletion_vector([1])))
    if in_checkpoint:
        DeltaTable(tmp_path / "t").create_checkpoint()
        for commit in made.log.glob("*.json"):
            commit.unlink()

    assert load(tmp_path, delta(tmp_path), "FROM d ORDER BY n") == [(1,), (3,)]


def test_a_deleted_obsolete_deletion_vector_is_not_needed(tmp_path: Path) -> None:
    made = HandMade(tmp_path / "t", [field("n", "long")], features=["deletionVectors"])
    first = made.add("a.parquet", pa.table({"n": [1, 2, 3]}), deletionVector=made.deletion_vector([0]))
    made.commit(first)
    for old in (tmp_path / "t").glob("*.bin"):
        old.unlink()
    gone = {"path": "a.parquet", "dataChange": True, "deletionVector": first["add"]["deletionVector"]}
    stats = first["add"]["stats"]
    made.commit({"remove": gone}, made.add("a.parquet", stats=stats, deletionVector=made.deletion_vector([0, 1])))

    assert load(tmp_path, delta(tmp_path)) == [(3,)]

    for vector in (tmp_path / "t").glob("*.bin"):
        vector.unlink()
    assert "damaged" in refusal(tmp_path, delta(tmp_path))


@pytest.mark.parametrize(
    ("features", "said"),
    [
        (["fancyFeature"], "'t' needs a feature that this reader does not support: fancyFeature."),
        (["variantType", "fancyFeature"], "'t' needs a feature that this reader does not support: fancyFeature."),
        (["catalogManaged"], "'t' needs a feature that this reader does not support: catalog-managed."),
    ],
)
def test_a_table_that_asks_for_more_is_refused(tmp_path: Path, features: list[str], said: str) -> None:
    made = HandMade(tmp_path / "t", [field("n", "long")], features=features)
    made.commit(made.add("a.parquet", pa.table({"n": [1]})))

    assert refusal(tmp_path, delta(tmp_path)) == said


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("variant", id="column"),
        pytest.param({"type": "struct", "fields": [field("v", "variant")]}, id="struct"),
        pytest.param({"type": "array", "elementType": "variant", "containsNull": True}, id="list"),
        pytest.param({"type": "map", "keyType": "string", "valueType": "variant", "valueContainsNull": True}, id="map"),
    ],
)
def test_a_table_with_a_variant_in_it_is_refused(tmp_path: Path, kind: Any) -> None:
    HandMade(tmp_path / "t", [field("n", "long"), field("x", kind)], features=["variantType", "variantShredding"])

    said = refusal(tmp_path, delta(tmp_path))

    assert said == "'t' needs a feature that this reader does not support: variantShredding, variantType."


def test_what_the_protocol_of_the_table_does_not_allow_is_refused(tmp_path: Path) -> None:
    made = HandMade(tmp_path / "t", [field("n", "long")])
    made.commit(made.add("a.parquet", pa.table({"n": [1, 2]}), deletionVector=made.deletion_vector([0])))
    HandMade(tmp_path / "u", [mapped("n", "long", 1)], delta_columnMapping_mode="name")

    assert "deletes rows in a way" in refusal(tmp_path, delta(tmp_path))
    assert "uses a column mapping" in refusal(tmp_path, delta(tmp_path, "u"))


@pytest.mark.parametrize(("columns", "left"), [(1, "255.0 MiB"), (100, "156.0 MiB"), (300, "128.0 MiB")])
def test_memory_of_a_library_reduces_that_of_the_engine(tmp_path: Path, columns: int, left: str) -> None:
    HandMade(tmp_path / "t", [field(f"c{index}", "long") for index in range(columns)])
    dataset = table(tmp_path, "delta:t")

    snapshot = builder(tmp_path, 256).build(Order(dataset, "SELECT current_setting('memory_limit')"), deadline())

    assert rows(tmp_path, snapshot) == [(left,)]
