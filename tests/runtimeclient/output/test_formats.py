import csv
import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeclient.client import RuntimeClient
from runtimeclient.errors import IncompleteResultError
from runtimeclient.output.formats import FORMATS, write_list, write_result
from runtimeclient.output.terminal import Style
from runtimeclient.output.writer import Output
from tests.corpus import each
from tests.runtimeclient.remote import VND, Remote, Reply, with_schema


def shown(remote: Remote, reply: Reply, format_: str) -> str:
    """What is written of an answer; of one that is cut, what is written until then."""
    remote.on_sql(reply)
    text = io.StringIO()
    with RuntimeClient(remote.url) as client, client.sql("SELECT", FORMATS[format_].media_type) as answer:
        try:
            write_result(answer, Style(format=format_), Output(text))
        except IncompleteResultError:
            return text.getvalue() + "<cut>"
    return text.getvalue()


ROWS = '[{"a":1.50,"b":"x\\u001b[2J"},{"a":null,"b":"日本"}]'


CSV = "a\ré\n\x1b[2J\n"


@each(
    ("format_", "reply", "written"),
    [
        pytest.param("json", Reply(body=ROWS.encode()), ROWS + "\n", id="unchanged JSON"),
        pytest.param(
            "ndjson",
            Reply(body=ROWS.encode()),
            '{"a":1.50,"b":"x\\u001b[2J"}\n{"a":null,"b":"日本"}\n',
            id="one unchanged row per line",
        ),
        pytest.param("csv", Reply(body=CSV.encode(), content_type="text/csv; charset=utf-8"), CSV, id="X12 CSV"),
        pytest.param(
            "table",
            with_schema(ROWS, "a", "b"),
            "    a | b\n------+----------\n 1.50 | x\\x1b[2J\n NULL | 日本\n(2 rows)\n",
            id="X12 an escaped table",
        ),
        pytest.param("table", with_schema("[]", "a", "b"), " a | b\n---+---\n(0 rows)\n", id="no rows"),
        ("json", Reply(body=b'[{"a":1},', is_cut=True), '[{"a":1},<cut>'),
        ("json", Reply(body=b'[{"a":1}'), '[{"a":1}<cut>'),
        ("json", Reply(body=b'[{"a":1}]', is_cut=True), '[{"a":1}]<cut>'),
        ("json", Reply(body=b"", is_cut=True), "<cut>"),
        ("ndjson", Reply(body=b'[{"a":1},{"a":', is_cut=True), '{"a":1}\n<cut>'),
        ("csv", Reply(body=b"a\n1\n", content_type="text/csv", is_cut=True), "a\n1\n<cut>"),
        ("csv", Reply(body=b"", content_type="text/csv", is_cut=True), "<cut>"),
        ("table", Reply(body=b'{"data":[{"a":1}', content_type=VND, is_cut=True), "<cut>"),
        ("table", Reply(body=b'{"schema":{},"data":[{"a":1}]}', content_type=VND, is_cut=True), "<cut>"),
    ],
)
def test_an_answer_in_every_format_and_a_cut_one_never_looks_complete(
    remote: Remote, format_: str, reply: Reply, written: str
) -> None:
    assert shown(remote, reply, format_) == written


ITEMS: list[dict[str, bool | int | str | None]] = [
    {"name": 'a,"b', "rows": 12345, "ok": True},
    {"name": "\x1b[2J", "rows": None, "ok": False},
]


TABLE = r"""
 name    |  rows | ok
---------+-------+-------
 a,"b    | 12345 | true
 \x1b[2J |  NULL | false
(2 rows)
"""


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        ("table", TABLE.lstrip("\n")),
        ("csv", 'name,rows,ok\n"a,""b",12345,true\n\x1b[2J,,false\n'),
        ("json", '[{"name":"a,\\"b","rows":12345,"ok":true},{"name":"\\u001b[2J","rows":null,"ok":false}]\n'),
    ],
)
def test_a_list_in_every_format(format_: str, text: str) -> None:
    out = io.StringIO()

    write_list(("name", "rows", "ok"), ITEMS, Style(format=format_), out)

    assert out.getvalue() == text


@given(st.lists(st.fixed_dictionaries({"a": st.none() | st.text(), "b": st.integers()}), max_size=5))
def test_a_list_keeps_its_values(items: list[dict[str, int | str | None]]) -> None:
    texts = {}
    for format_ in ("csv", "json"):
        out = io.StringIO(newline="")
        write_list(("a", "b"), items, Style(format=format_), out)
        texts[format_] = out.getvalue()

    assert json.loads(texts["json"]) == items
    assert list(csv.DictReader(io.StringIO(texts["csv"], newline=""))) == [
        {"a": item["a"] or "", "b": str(item["b"])} for item in items
    ]
