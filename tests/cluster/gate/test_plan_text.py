import pytest

from cluster.gate.text import shown


@pytest.mark.parametrize(
    ("plan", "read"),
    [
        (
            "Location: InMemoryFileIndex(1 paths)[file:/data/a/b.parquet], x",
            "Location: InMemoryFileIndex(1 paths)[<path>], x",
        ),
        ("file_groups={1 group: [[data/flights/1.parquet:0..9]]}", "file_groups={1 group: [[<path>]]}"),
        ("s3://lake/orders/year=2026/x", "<path>"),
        ("Filter (a / b > 1)", "Filter (a / b > 1)"),
    ],
)
def test_a_plan_does_not_name_files(plan: str, read: str) -> None:
    assert shown(plan, {}) == read


def test_a_plan_has_the_declared_names() -> None:
    names = {"v0123456789abcdef_few": "Few", "v0123456789abcdef_fewer": "Fewer"}
    plan = "Projection: v0123456789abcdef_fewer.id, v0123456789abcdef_few.id"

    assert shown(plan, names) == "Projection: Fewer.id, Few.id"
