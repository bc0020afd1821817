from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tests.datasources.sources.delta_tables import HandMade, field, mapped
from tests.datasources.sources.loads import load
from tests.datasources.sources.test_delta import delta, write
from tests.datasources.support import refusal


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
        (["fancyFeature"], "'t' needs what this reader does not support: fancyFeature."),
        (["variantType", "fancyFeature"], "'t' needs what this reader does not support: fancyFeature."),
        (["catalogManaged"], "'t' needs what this reader does not support: catalog-managed."),
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

    assert said == "'t' needs what this reader does not support: variantShredding, variantType."


def test_what_the_protocol_of_the_table_does_not_allow_is_refused(tmp_path: Path) -> None:
    made = HandMade(tmp_path / "t", [field("n", "long")])
    made.commit(made.add("a.parquet", pa.table({"n": [1, 2]}), deletionVector=made.deletion_vector([0])))
    HandMade(tmp_path / "u", [mapped("n", "long", 1)], delta_columnMapping_mode="name")

    assert "deletes rows in a way" in refusal(tmp_path, delta(tmp_path))
    assert "maps its columns in a way" in refusal(tmp_path, delta(tmp_path, "u"))
