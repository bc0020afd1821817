"""DataFusion's functions in a session: defined when a statement calls them, and never in the way of another."""

import itertools
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from docs.internals.datafusion import page
from docs.internals.datafusion.constructs import ANSWERS, constructs
from queryengine.cancellation import Interruption
from queryengine.encoders import encode_parts
from queryengine.engine import GatedStatement, Query
from queryengine.errors import QueryError, SqlError
from queryengine.execution.instance import EngineInstance
from queryengine.gate.macros import macros
from tests.corpus import each
from tests.queryengine.conftest import OpenSession
from tests.queryengine.execution.instances import gate, rows, run, table
from tests.queryengine.publishing import Publisher
from tests.queryengine.statements import DECLARED, LASTING, TABLES, VIEWS

_DEFINED = "SELECT function_name FROM duckdb_functions() WHERE schema_name = 'main' AND database_name = 'runtime'"
OF_DUCKDB = {"json_contains", "json_structure", "json_group_structure", "to_variant", "variant_group_array"}


def defined(session: EngineInstance) -> set[str]:
    with session._connection.cursor() as cursor:
        return {name for (name,) in cursor.execute(_DEFINED).fetchall()} - OF_DUCKDB


def test_a_macro_is_defined_when_a_statement_calls_it(open_session: OpenSession) -> None:
    session = open_session()

    assert defined(session) == set(), "opening a session defines none"
    assert rows(session, "SELECT 1 AS a") == [{"a": 1}]
    assert defined(session) == set()
    assert rows(session, "SELECT array_remove([1, 2], 1) AS a, regexp_match('ab', 'a(b)') AS b") == [
        {"a": [2], "b": ["b"]}
    ]
    assert defined(session) == {
        "array_remove",
        *("regexp_match", "df_match", "df_groups"),
    }


def test_a_shared_cursor_sees_what_is_defined_after_its_transaction_began(open_session: OpenSession) -> None:
    session = open_session()

    for name, sql in (("nvl", "nvl(NULL, 1)"), ("nvl2", "nvl2(1, 1, 2)"), ("iszero", "iszero(0)::INTEGER")):
        assert rows(session, "SELECT 0 AS a") == [{"a": 0}]  # keeps a cursor, with its transaction
        assert rows(session, f"SELECT {sql} AS a") == [{"a": 1}]
        assert name in defined(session)


def test_a_session_that_cannot_define_a_macro_fails_as_it_does_elsewhere(open_session: OpenSession) -> None:
    session = open_session()
    session._connection.close()

    with pytest.raises(QueryError):
        rows(session, "SELECT nvl(NULL, 1) AS a")


def test_threads_may_be_the_first_at_once(open_session: OpenSession) -> None:
    session = open_session()
    calls = [f"SELECT array_{name}([1, 3]) AS a" for name in ("max", "min", "sum", "avg", "product")] * 8

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda sql: rows(session, sql)[0]["a"], calls))

    assert found == [3, 1, 4, 2, 3] * 8


def test_a_view_may_call_it_and_is_as_deterministic_as_it_is(open_session: OpenSession) -> None:
    views = {
        "steady": "SELECT initcap('a b') AS a",
        "changing": "SELECT rand() < 2 AS a",
        "list": "SELECT make_array(1) AS a",
    }
    session = open_session(views=views)
    relations = frozenset(views)

    def read(name: str) -> Any:
        return table(run(session, f"SELECT a FROM {name}", relations=relations)).to_pylist()

    assert (read("steady"), read("changing"), read("list")) == ([{"a": "A B"}], [{"a": True}], [{"a": [1]}])
    assert session.is_cacheable(gate().admit("FROM steady", relations))
    assert not session.is_cacheable(gate().admit("FROM changing", relations))


def test_what_duckdb_answers_is_the_same_with_all_macros_defined(
    open_session: OpenSession, publisher: Publisher
) -> None:
    publisher.publish(**TABLES)
    plain, full = (open_session(datasets=tuple(TABLES), views=VIEWS) for _ in range(2))
    calls = frozenset(macros())
    full._definitions.define_macros("runtime", calls)
    assert defined(full) == calls

    def answer(session: EngineInstance, statement: GatedStatement) -> list[str]:
        with closing(session.run(statement, Query(sql=statement.sql), Interruption())) as reader:
            parts = encode_parts("json", reader.columns, reader.schema, reader)
            return sorted(map(repr, json.loads(b"".join(itertools.chain.from_iterable(parts)))))

    statements = [gate().admit(sql, DECLARED) for sql in LASTING]
    for statement in [one for one in statements if one.deterministic]:
        assert answer(plain, statement) == answer(full, statement), statement.sql


@each(
    ("sql", "message"),
    [
        ("SELECT nvl(1)", r"^Macro nvl\(\) does not support the supplied arguments\..*\n.*\n\tnvl\(x, y\)"),
        ("SELECT to_date('x')", "invalid timestamp field format"),
        ("SELECT to_date(3000000000)", "Could not convert string '3000000000' to INT32"),
        ("SELECT to_timestamp_millis(1e300)", "Could not convert string '1e\\+300' to INT64"),
        ("SELECT array_position([1], 1, 0)", r"^array_position counts from 1\.$"),
        ("SELECT regexp_instr('a', 'a', 1, 0)", r"^regexp_instr counts from 1\.$"),
        ("SELECT digest('a', 'sha512')", r"^The algorithms of digest are md5 and sha256 here\.$"),
        ("SELECT encode('a', 'utf8')", r"^The formats of encode are hex and base64\.$"),
        ("SELECT regexp_match(a, b) FROM (SELECT 'a' AS a, 'b' AS b)", "must be a constant"),
        ("SELECT array_add([1], ['a'])", "No function matches"),
    ],
)
def test_an_error_does_not_show_the_body(open_session: OpenSession, sql: str, message: str) -> None:
    with pytest.raises(SqlError, match=message) as caught:
        rows(open_session(), sql)
    assert "df_" not in str(caught.value)
    assert "lambda" not in str(caught.value)


@pytest.mark.exhaustive
def test_the_page_shows_what_the_engine_answers_now() -> None:
    assert page.PAGE.read_text(encoding="utf-8") == page.page(), "run `make reference`"


def test_most_constructs_give_the_answer_of_datafusion_and_the_others_say_why() -> None:
    compared = page.compare()

    assert sum(one.verdict == "same" for one in compared) >= 0.85 * len(compared)
    assert [one.construct.text for one in compared if (one.verdict == "same") == bool(one.construct.reason)] == []


def test_the_list_has_every_function_once_recorded_and_no_construct_twice() -> None:
    recorded = json.loads(ANSWERS.read_text(encoding="utf-8"))
    texts = [one.text for one in constructs()]
    needs_more = {"file_row_index", "input_file_name", "union_extract", "union_tag"}

    assert len(texts) == len(set(texts)) >= 403
    assert list(recorded["answers"]) == texts, "run `make datafusion`"
    words = set(" ".join(texts).replace("(", " ").replace(",", " ").split())
    assert set(recorded["functions"]) - words == needs_more
