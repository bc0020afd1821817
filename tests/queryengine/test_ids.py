import pytest

from queryengine.ids import accepted_id, new_id


def test_new_ids_differ_and_are_well_formed() -> None:
    ids = {new_id() for _ in range(1000)}

    assert len(ids) == 1000
    assert all(accepted_id(text) == text for text in (*ids, "a", "x" * 128, "3f2c-9.A_z", "0"))


@pytest.mark.parametrize("text", [None, "", "x" * 129, "a b", "a\n", "\n", "é", "a,b", "a/b", "<b>", "a\r\nX: y", "٣"])
def test_anything_else_is_replaced(text: str | None) -> None:
    assert accepted_id(text) is None
