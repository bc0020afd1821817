"""
What a rule of a key leaves out is not to be learned, by whatever statement.

An engine with the rule gives the same answers, errors included, as one that has only what the rule leaves.
"""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import Any

import pytest

from queryengine.engine import Encoding, Query, QueryEngine
from queryengine.errors import QueryError
from queryengine.execution.definitions import Definitions
from queryengine.execution.key_catalogs import KeyCatalogs
from runtimeconf.model import Scope
from tests.queryengine import hidden_rows
from tests.queryengine.conftest import KINDS, config_of
from tests.queryengine.hidden_rows import LEAK, SCOPES, VIEWS, VISIBLE
from tests.queryengine.publishing import Publisher

ALL = {"orders": hidden_rows.ORDERS, "grants": hidden_rows.GRANTS, "barred": hidden_rows.BARRED}


def start(running: ExitStack, directory: Any, tables: dict[str, str], views: dict[str, str]) -> QueryEngine:
    publisher = Publisher(directory / "state")
    publisher.publish(**tables)
    return running.enter_context(KINDS["in process"](config_of(publisher.state_dir, tuple(tables), views)))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryEngine]:
    """An engine with all rows."""
    with ExitStack() as running:
        yield start(running, tmp_path_factory.mktemp("all"), ALL, VIEWS)


@pytest.fixture(scope="module")
def visible(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QueryEngine]:
    """An engine that has only what a key with a row filter sees."""
    with ExitStack() as running:
        yield start(running, tmp_path_factory.mktemp("visible"), {"orders": VISIBLE}, {})


def answer(engine: QueryEngine, sql: str, scope: Scope | None, encoding: Encoding = "json") -> bytes:
    """Return the answer, or the error."""
    try:
        with closing(engine.run(Query(sql=sql, scope=scope, encoding=encoding))) as result:
            return b"".join(result)
    except QueryError as error:
        return f"{type(error).__name__}: {error}".encode()


def leaks(engine: QueryEngine, form: str, seeds: range) -> list[str]:
    """Return the statements whose answers hold what is hidden."""
    table = "orders_of_acme" if form == "view" else "orders"
    statements = [hidden_rows.statement(seed, table) for seed in seeds]
    return [sql for sql in statements if LEAK.search(answer(engine, sql, SCOPES[form]))]


@pytest.mark.parametrize("form", SCOPES)
def test_no_statement_shows_what_is_hidden(engine: QueryEngine, form: str) -> None:
    assert leaks(engine, form, range(50)) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("form", SCOPES)
def test_none_of_many_statements_shows_what_is_hidden(engine: QueryEngine, form: str) -> None:
    assert leaks(engine, form, range(2_500)) == []


#: Its plan shows values of hidden rows if the engine joins them.
TELLING = "EXPLAIN ANALYZE SELECT 1 AS x FROM {} WHERE (score::DECIMAL(9, 3))::VARCHAR = ANY (SELECT code FROM {})"


@pytest.mark.parametrize(
    ("form", "is_secure"), [("join", False), ("exists", False), ("in", False), ("view", False), ("join", True)]
)
def test_a_view_would_show_what_a_copy_does_not(
    engine: QueryEngine,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    is_secure: bool,
) -> None:
    sql = TELLING.replace("{}", "orders_of_acme" if form == "view" else "orders")
    with_copy = answer(engine, sql, SCOPES[form])
    define_view = Definitions.define_view
    monkeypatch.setattr(KeyCatalogs, "_leaves_rows_out", lambda *_: False)
    monkeypatch.setattr(Definitions, "define_view", lambda *args, **_: define_view(*args, is_secure=is_secure))
    with ExitStack() as running:
        bare = start(running, tmp_path_factory.mktemp("bare"), ALL, VIEWS)

        assert LEAK.search(answer(bare, sql, SCOPES[form]))
    assert not LEAK.search(with_copy)


def test_the_number_of_hidden_rows_decides_nothing(engine: QueryEngine) -> None:
    """With DuckDB's secure views, a plan has the estimate of all rows, and the order of a join depends on it."""
    shown = [answer(engine, f"EXPLAIN FROM orders WHERE id = {number}", SCOPES["constant"]) for number in range(3)]
    assert not any(b"4,200" in one or b"4200" in one for one in shown)

    join = "SELECT id, range FROM orders JOIN range({}) ON id % 10 = range % 10 LIMIT 1"
    firsts = {size: answer(engine, join.format(size), SCOPES["constant"]) for size in (1000, 2000, 5000, 9000)}
    assert len({(b'"id":1,' in first) for first in firsts.values()}) == 1


FILTERED = [form for form in SCOPES if form not in {"view", "columns and masks"}]
ENCODINGS: tuple[Encoding, ...] = ("json", "ndjson", "csv", "arrow", "vnd", "flight")


def in_any_order(engine: QueryEngine, sql: str, scope: Scope | None) -> list[str]:
    """Return the rows of a statement that does not fix their order."""
    return sorted(answer(engine, sql, scope, "ndjson").decode().splitlines())


def differences(engine: QueryEngine, visible: QueryEngine, seeds: range) -> list[object]:
    """Return the statements that a key with a row filter gets another answer to than one that has nothing else."""
    found: list[object] = []
    for seed in seeds:
        sql = hidden_rows.statement(seed, "orders", plans=False)
        scope, encoding = SCOPES[FILTERED[seed % len(FILTERED)]], ENCODINGS[seed % len(ENCODINGS)]
        answers, expected = answer(engine, sql, scope, encoding), answer(visible, sql, None, encoding)
        if b"\n\nLINE " in expected and ("runtime" in sql or "PIVOT" in sql):
            # The excerpt shows the statement without the name of the database, or a name that DuckDB made up.
            answers, expected = (one.partition(b"\n\nLINE ")[0] for one in (answers, expected))
        if answers != expected and in_any_order(engine, sql, scope) != in_any_order(visible, sql, None):
            found.append((sql, encoding, answers, expected))
    return found


def test_every_answer_is_that_of_an_engine_with_nothing_else(engine: QueryEngine, visible: QueryEngine) -> None:
    assert differences(engine, visible, range(400)) == []


@pytest.mark.exhaustive
def test_every_one_of_many_answers_is_that_of_an_engine_with_nothing_else(
    engine: QueryEngine, visible: QueryEngine
) -> None:
    assert differences(engine, visible, range(6_000)) == []
