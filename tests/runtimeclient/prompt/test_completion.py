import re
import threading
from collections.abc import Mapping
from pathlib import Path

import duckdb
import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from runtimeclient.client import RuntimeClient
from runtimeclient.prompt.completion import COLUMNS_SQL, Catalog, PromptCompleter, _quoted
from tests.corpus import each
from tests.runtimeclient.remote import API_KEY, Remote, Reply, as_reply, problem
from tests.system.harness import REPOSITORY

COLUMNS = {"orders": ("id", "Order", "placed at"), "order_lines": ("id", "sku"), "Lower Case": ("a",)}
#: Tables in a schema, and one whose name is a word of SQL.
OTHERS = {"sales.grants": ("id", "window", "a.b"), "sales.Old": ("x",), "primary": ("y",)}


def rows(columns: Mapping[str, tuple[str, ...]]) -> Reply:
    return as_reply(
        [
            {"table_name": table, "column_name": column, "data_type": "INTEGER"}
            for table, names in columns.items()
            for column in names
        ]
    )


def wait(names: Catalog) -> None:
    """Wait for the end of the background query."""
    assert names._thread is not None
    names._thread.join()


def known(remote: Remote) -> Catalog:
    with RuntimeClient(remote.url, API_KEY) as client:
        names = Catalog(client)
        names.refresh()
        wait(names)
    return names


@pytest.fixture
def names(remote: Remote) -> Catalog:
    remote.on_sql(rows(COLUMNS))
    return known(remote)


def offered(names: Catalog, text: str, after: str = "") -> list[str]:
    completer = PromptCompleter(names)
    found = completer.get_completions(Document(text + after, len(text)), CompleteEvent())
    return [completion.text for completion in found]


@each(
    ("text", "after", "words"),
    [
        pytest.param("SELECT * FROM ord", "", ["orders", "order_lines"], id="tables"),
        pytest.param("select * from orders join ", "", ["orders", "order_lines", '"Lower Case"'], id="all tables"),
        pytest.param("SELECT * FROM orders, L", "", ['"Lower Case"'], id="a table after a comma"),
        pytest.param("SELECT s", " FROM order_lines", ["sku"], id="a column of a table named later"),
        pytest.param("SELECT sk", "", ["sku"], id="a column of any table"),
        pytest.param("SELECT o.", " FROM orders o", ["id", '"Order"', '"placed at"'], id="columns of an alias"),
        pytest.param('SELECT "Lower Case".', ' FROM "Lower Case" AS l', ["a"], id="columns of a quoted name"),
        pytest.param("SELECT x.", " FROM orders", [], id="of no table"),
        pytest.param("SELEC", "", ["SELECT"], id="a word"),
        pytest.param("selec", "", ["select"], id="a word in lower case"),
        pytest.param("SELECT 1; SELEC", "", ["SELECT"], id="a word of the next statement"),
        pytest.param("SELECT row_num", "", ["row_number("], id="a function"),
        pytest.param("SELECT 'ord", "", [], id="nothing in a text"),
        pytest.param("SELECT /* ord", "", [], id="nothing in a comment"),
        pytest.param(".tim", "", [".timing", ".timer"], id="a command"),
        pytest.param("\\ti", "", ["\\timing"], id="a command of psql"),
        pytest.param("\\timing o", "", ["on", "off"], id="what a command of psql takes"),
        pytest.param(".mode c", "", ["csv"], id="what a command of the DuckDB shell takes"),
        pytest.param(".timing o", "", ["on", "off"], id="what it takes"),
        pytest.param(".format c", "", ["csv"], id="a format"),
        pytest.param(".schema or", "", ["orders", "order_lines"], id="a table for a command"),
        pytest.param(".nothing x", "", [], id="no command"),
    ],
)
def test_completions_of_statements_and_commands(names: Catalog, text: str, after: str, words: list[str]) -> None:
    assert offered(names, text, after)[: len(words) or 1] == words


def test_completions_of_files(names: Catalog, tmp_path: Path) -> None:
    (tmp_path / "report.sql").touch()

    assert offered(names, f".read {tmp_path}/rep") == ["ort.sql"]


def test_names_with_control_characters_are_not_completed(remote: Remote) -> None:
    remote.on_sql(rows({"a\x1b[2J": ("x",), "b": ("y\r", "z")}))

    assert known(remote).columns == {"b": {"z": "INTEGER"}}


@pytest.mark.parametrize("reply", [problem(403, "forbidden", "No."), Reply(body=b"[1]"), Reply(body=b'[{"a":1}]')])
def test_a_runtime_without_a_catalog_is_no_error(remote: Remote, reply: Reply) -> None:
    remote.on_sql(reply)

    assert known(remote).columns == {}
    assert remote.statements == [COLUMNS_SQL]


def test_the_catalog_is_refreshed_after_its_maximum_age(remote: Remote) -> None:
    remote.on_sql(rows(COLUMNS))
    with RuntimeClient(remote.url, API_KEY) as client:
        names = Catalog(client)
        for age_s in (0, 0, 61):
            names._due_at -= age_s
            names.refresh()
            wait(names)

    assert len(remote.statements) == 2


def test_the_catalog_of_a_busy_runtime_is_requested_again(remote: Remote, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtimeclient.prompt.completion._RETRY_S", 0.0)
    answers = iter([problem(503, "engine_busy", "Later."), rows(COLUMNS)])
    may_answer = threading.Event()
    may_answer.set()

    def answer(_: object) -> Reply:
        assert may_answer.wait(30)
        return next(answers)

    remote.on_sql(answer)
    with RuntimeClient(remote.url, API_KEY) as client:
        names = Catalog(client)
        names.refresh()
        wait(names)

        may_answer.clear()
        assert offered(names, "FROM ord") == []
        may_answer.set()
        wait(names)
        assert offered(names, "FROM ord") == ["orders", "order_lines"]

    assert remote.statements == [COLUMNS_SQL] * 2


@each(
    ("text", "after", "words"),
    [
        pytest.param("FROM sal", "", ["sales.grants", 'sales."Old"'], id="tables in a schema"),
        pytest.param("FROM sales.g", "", ["grants"], id="a table after its schema"),
        pytest.param("FROM sales.", "", ["grants", '"Old"'], id="all tables of a schema"),
        pytest.param("SELECT grants.", " FROM sales.grants", ["id", '"window"', '"a.b"'], id="columns of its table"),
        pytest.param("SELECT g.i", " FROM sales.grants AS g", ["id"], id="columns of an alias"),
        pytest.param("FROM prim", "", ['"primary"'], id="a word of SQL"),
    ],
)
def test_completions_of_names_in_schemas(remote: Remote, text: str, after: str, words: list[str]) -> None:
    remote.on_sql(rows(OTHERS))
    assert offered(known(remote), text, after) == words


def test_every_name_that_the_engine_cannot_read_without_quotes_gets_them() -> None:
    page = (REPOSITORY / "runtimeclient/console/page/src/names.ts").read_text().partition("RESERVED")[2]
    of_page = {word for text in re.findall('"(.*?)"', page.partition('.split(" ")')[0]) for word in text.split()}
    needed = {"user"}
    with duckdb.connect() as engine:
        for (word,) in engine.execute("SELECT keyword_name FROM duckdb_keywords()").fetchall():
            engine.execute(f'CREATE OR REPLACE TABLE "{word}" AS SELECT 1 AS "{word}"')
            try:
                for sql in (f"FROM {word} LIMIT 1", f'SELECT {word} FROM "{word}"', f"SUMMARIZE {word}"):
                    engine.execute(sql)
            except duckdb.Error:
                needed.add(word)

    assert needed <= of_page
    assert [word for word in needed if not _quoted(word).startswith('"')] == []
