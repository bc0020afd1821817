import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datasources.sql import identifier, literal, literals

texts = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30)


@pytest.mark.exhaustive
@settings(deadline=None)  # Opening the engine takes what it takes.
@given(texts)
def test_the_engine_reads_back_what_was_written(text: str) -> None:
    with duckdb.connect() as connection:
        row = connection.execute(f"SELECT {literal(text)} AS {identifier(text)}, {literals([text, text])}").fetchone()
        names = [column[0] for column in connection.description or ()]

    assert row == (text, [text, text])
    assert names[0] == text
