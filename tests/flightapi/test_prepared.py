import sys

import pyarrow as pa
import pytest

from flightapi import prepared as limits
from flightapi.errors import UnknownPreparedStatementError
from flightapi.prepared import Prepared, PreparedStatements
from queryengine.engine import ArrowParameters
from queryengine.errors import ResourceLimitError
from tests.flightapi.endpoint import Clock


def statement(sql: str = "SELECT 1") -> Prepared:
    return Prepared(sql, takes_parameters=False)


def test_a_handle_belongs_to_the_key_that_created_it() -> None:
    kept = PreparedStatements()
    handle, other = kept.add("a", statement()), kept.add("a", statement())

    kept.bind("a", handle, ArrowParameters(b"x"))
    assert [kept.get("a", one).parameters for one in (handle, other)] == [ArrowParameters(b"x"), None]
    assert kept.get("a", handle).sql == "SELECT 1"
    with pytest.raises(UnknownPreparedStatementError):
        kept.get("b", handle)
    with pytest.raises(UnknownPreparedStatementError):
        kept.bind("b", handle, None)
    kept.close("b", handle)
    assert len(kept) == 2
    kept.close("a", handle)
    kept.close("a", handle)
    assert len(kept) == 1


def test_many_statements_of_one_key_are_bounded_and_the_least_recently_used_go() -> None:
    kept = PreparedStatements()
    other = kept.add("b", statement())
    handles = [kept.add("a", statement()) for _ in range(limits.MAX_OF_KEY)]
    kept.get("a", handles[0])

    for number in range(3 * limits.MAX_OF_KEY):
        handles.append(kept.add("a", statement(f"SELECT {number}")))
        kept.get("a", handles[0])

    assert len(kept) == limits.MAX_OF_KEY + 1
    assert kept.get("b", other)
    assert kept.get("a", handles[-limits.MAX_OF_KEY + 1]).sql == f"SELECT {2 * limits.MAX_OF_KEY + 1}"
    with pytest.raises(UnknownPreparedStatementError):
        kept.get("a", handles[-limits.MAX_OF_KEY])


def test_statements_of_all_keys_are_bounded_together() -> None:
    kept = PreparedStatements()
    for number in range(limits.MAX_STATEMENTS + 100):
        kept.add(f"key {number // 900}", statement())

    assert len(kept) == limits.MAX_STATEMENTS


def test_bytes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BYTES_OF_KEY", 100_000)
    monkeypatch.setattr(limits, "MAX_BYTES", 250_000)
    kept = PreparedStatements()
    large = statement("x" * 40_000)
    handles = {key: [kept.add(key, large) for _ in range(3)] for key in "abcd"}

    # Two statements of a key fit. From the second statement of the third key on, the oldest of other keys are evicted.
    assert len(kept) == 250_000 // large.size
    assert kept.get("d", handles["d"][-1])
    with pytest.raises(ResourceLimitError):
        kept.add("a", statement("x" * 100_000))
    with pytest.raises(ResourceLimitError):
        kept.bind("d", handles["d"][-1], ArrowParameters(b"x" * 100_000))
    assert kept.get("d", handles["d"][-1]).parameters is None
    assert large.size > sys.getsizeof(large.sql)


def test_bytes_are_bounded_although_a_text_grows_while_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MAX_BYTES_OF_KEY", 100_000)
    kept = PreparedStatements()
    kept.add("a", statement())
    for number in range(10):
        growing = statement("é" * 20_000 + str(number))
        handle = kept.add("a", growing)
        before = sys.getsizeof(growing.sql)
        pa.scalar(growing.sql)  # The text keeps its UTF-8 from now on.
        assert sys.getsizeof(growing.sql) > before
        kept.close("a", handle)

    for _ in range(10):
        kept.add("a", statement("x" * 40_000))

    assert len(kept) == 2


def test_an_unused_statement_expires() -> None:
    clock = Clock()
    kept = PreparedStatements(clock)
    used, idle = kept.add("a", statement()), kept.add("b", statement())
    clock.now = limits.IDLE_S - 1
    kept.get("a", used)

    clock.now = limits.IDLE_S + 1

    with pytest.raises(UnknownPreparedStatementError):
        kept.get("b", idle)
    kept.expire()
    assert len(kept) == 1
    assert kept.get("a", used)
