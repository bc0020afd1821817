"""The tools of the server: what they are, and what they return for models (text) and programs (structured content)."""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from difflib import get_close_matches
from operator import itemgetter
from typing import Any, Protocol, TypeAlias

from mcpapi.errors import ToolError
from mcpapi.results import DEFAULT_ROWS, MAX_BYTES, MAX_ROWS, Rows, read_rows

#: How many columns of each dataset `list_datasets` shows, and of one `describe_dataset`.
LISTED_COLUMNS = 40
DESCRIBED_COLUMNS = 1000
_TYPE_CHARACTERS = 200
_COMMENT_CHARACTERS = 500
#: How much of a wrong name is compared with those that exist.
_NAME_CHARACTERS = 200
_SAMPLE_ROWS = 3
_SAMPLE_BYTES = 8 * 1024
#: For the statement of ours, whose rows are datasets.
_CATALOG_ROWS = 100_000
_CATALOG_BYTES = 4 << 20

_CATALOG = (
    "SELECT if(c.table_schema = 'main', c.table_name, concat(c.table_schema, '.', c.table_name)) AS name,"
    " t.TABLE_COMMENT, count(*), list([c.column_name, left(c.data_type, {type}), left(c.COLUMN_COMMENT, {comment})]"
    " ORDER BY c.ordinal_position)[:{columns}]"
    " FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)"
    "{where} GROUP BY 1, 2 ORDER BY 1"
)


class Runtime(Protocol):
    """A runtime, as the key of the caller sees it."""

    def run(self, sql: str) -> AbstractContextManager[Iterable[bytes]]:
        """
        Run a statement in the block, which may end before its result does.

        The result is `application/vnd.spiceai.sql.v1+json`. Raises ToolError if the runtime refuses it or it fails.
        """

    def datasets(self) -> list[dict[str, Any]]:
        """Return the items of `GET /v1/datasets`. Raises ToolError."""


#: The result of a tool: for models, and for programs.
Content: TypeAlias = tuple[str, dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool. `arguments` and `output` are JSON schemas of the properties, of which `required` must be there."""

    name: str
    title: str
    description: str
    run: Callable[[Runtime, Mapping[str, Any]], Content]
    output: dict[str, Any]
    arguments: Mapping[str, Any]
    required: tuple[str, ...] = ()

    def described(self) -> dict[str, Any]:
        """Return the tool as `tools/list` shows it."""
        return {
            "name": self.name,
            "title": self.title,
            "description": self.description,
            "inputSchema": _object(self.arguments, self.required) | {"additionalProperties": False},
            "outputSchema": self.output,
            "annotations": {
                "title": self.title,
                "readOnlyHint": True,
                "destructiveHint": False,
                "idempotentHint": True,
                "openWorldHint": False,
            },
        }


def call(runtime: Runtime, tool: Tool, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of a call. A failure is a result as well, so that the model can correct itself."""
    try:
        _check(tool, arguments)
        text, structured = tool.run(runtime, arguments)
    except ToolError as error:
        hint = _HINTS.get(error.code)
        text = f"{error.code}: {error}" + (f"\n{hint}" if hint else "")
        return {"content": [{"type": "text", "text": text}], "isError": True}
    return {"content": [{"type": "text", "text": text}], "structuredContent": structured, "isError": False}


#: What to do about an error whose own sentence does not say it.
_HINTS = {
    "sql_error": "list_datasets names the tables and columns that exist for this key.",
    "sql_syntax_error": "The dialect is DuckDB's. Send one statement.",
    "statement_not_allowed": "Only SELECT, WITH, VALUES, FROM, EXPLAIN, DESCRIBE, SHOW, SUMMARIZE and PIVOT may run, on"
    " the datasets that list_datasets shows. Files, settings and other databases cannot be reached.",
    "query_timeout": "Filter by the columns that narrow the data most, aggregate, or ask for less at once.",
    "resource_limit": "Sort, group or join fewer rows: filter first, or select fewer columns.",
}


def _check(tool: Tool, arguments: Mapping[str, Any]) -> None:
    for name in tool.required:
        if name not in arguments:
            raise ToolError("invalid_arguments", f"{tool.name} needs the argument {name}.")
    for name, value in arguments.items():
        schema = tool.arguments.get(name)
        if schema is None:
            names = ", ".join(tool.arguments) or "none"
            raise ToolError("invalid_arguments", f"{tool.name} has no argument of this name: it has {names}.")
        if schema["type"] == "string" and not isinstance(value, str):
            raise ToolError("invalid_arguments", f"{name} must be a string.")
        if schema["type"] == "integer" and (
            isinstance(value, bool) or value not in range(schema["minimum"], schema["maximum"] + 1)
        ):
            raise ToolError("invalid_arguments", f"{name} must be a whole number from 1 to {schema['maximum']}.")


def _rows(runtime: Runtime, sql: str, max_rows: int, max_bytes: int) -> Rows:
    try:
        with runtime.run(sql) as chunks:
            return read_rows(chunks, max_rows, max_bytes)
    except RecursionError as error:
        raise ToolError("row_too_large", "A value is nested too deep to show: select parts of it.") from error


def _query(runtime: Runtime, arguments: Mapping[str, Any]) -> Content:
    rows = _rows(runtime, arguments["sql"], arguments.get("max_rows", DEFAULT_ROWS), MAX_BYTES)
    count = _counted(len(rows.rows), "row")
    end = f"Cut after {count}; {_MORE}" if rows.is_cut else f"{count}."
    return "\n".join([f"columns: {rows.header}", *rows.lines, end]), rows.structured()


_MORE = (
    "there are more. Aggregate (count, sum, GROUP BY), filter, or page with ORDER BY, LIMIT and OFFSET instead of"
    " reading all rows."
)


def datasets(runtime: Runtime, name: str | None = None) -> list[dict[str, Any]]:
    """
    Return each dataset and view, or the one with this *name*, with its first columns, in order of name.

    Figures of views and of hidden rows are None.

    Raises:
        ToolError: The runtime refused to list them.
    """
    states = {one["name"].lower(): one for one in runtime.datasets()}
    quoted = "" if name is None else name.lower().replace("'", "''")
    statement = _CATALOG.format(
        type=_TYPE_CHARACTERS + 1,
        comment=_COMMENT_CHARACTERS + 1,
        columns=LISTED_COLUMNS if name is None else DESCRIBED_COLUMNS,
        where="" if name is None else f" WHERE lower(name) = '{quoted}'",
    )
    try:
        catalog = _rows(runtime, statement, _CATALOG_ROWS, _CATALOG_BYTES).rows
    except ToolError as error:
        if error.code not in _WITHOUT_CATALOG:
            raise
        catalog = []
    known = {table.lower() for table, *_ in catalog}
    # A dataset without data has no columns.
    catalog += [
        [one["name"], None, 0, []]
        for lower, one in states.items()
        if lower not in known and (name is None or lower == name.lower())
    ]
    return [
        {
            "name": table,
            "description": about,
            "columns": [
                {
                    "name": column,
                    "type": _line(str(_cut(kind, _TYPE_CHARACTERS))),
                    "description": _cut(comment, _COMMENT_CHARACTERS),
                }
                for column, kind, comment in columns
            ],
            "column_count": count,
            **{figure: states.get(table.lower(), {}).get(figure) for figure in ("status", "rows", "refreshed_at")},
        }
        for table, about, count, columns in sorted(catalog, key=itemgetter(0))
    ]


#: A cluster speaks Spark's dialect, and has no descriptions of columns.
_WITHOUT_CATALOG = frozenset({"sql_error", "sql_syntax_error", "statement_not_allowed"})


def _list(runtime: Runtime, _: Mapping[str, Any]) -> Content:
    shown: list[dict[str, Any]] = []
    lines: list[str] = []
    size = 0
    found = datasets(runtime)
    for one in found:
        more = one["column_count"] - len(one["columns"])
        text = _heading(one) + (f"\n  {', '.join(map(_column, one['columns']))}" if one["columns"] else "")
        text += f", and {more:,} more: see describe_dataset" if more else ""
        size += len(text.encode())
        if size > MAX_BYTES:
            lines.append(f"Cut after {len(shown)} of {len(found)}: query information_schema.tables for all names.")
            break
        lines.append(text)
        shown.append(one)
    lines.append(f"{_counted(len(found), 'dataset')}.")
    return "\n".join(lines), {"datasets": shown, "dataset_count": len(found)}


#: The columns are worth showing even if the first rows are too large, or not there yet.
_WITHOUT_SAMPLE = frozenset({"row_too_large", "result_too_wide", "dataset_not_loaded", "sql_error"})


def _describe(runtime: Runtime, arguments: Mapping[str, Any]) -> Content:
    one = next(iter(datasets(runtime, arguments["name"])), None)
    if one is None:
        raise _not_found(runtime, arguments["name"])
    schema, _, table = one["name"].replace('"', '""').rpartition(".")
    relation = f'"{schema or "main"}"."{table}"'
    sample = None
    try:
        sample = _rows(runtime, f"FROM {relation} LIMIT {_SAMPLE_ROWS}", _SAMPLE_ROWS, _SAMPLE_BYTES)
    except ToolError as error:
        if error.code not in _WITHOUT_SAMPLE:
            raise
    if sample is not None and not one["columns"]:  # There was no catalog to read.
        columns = [{"name": column, "type": kind, "description": None} for column, kind in sample.columns]
        one |= {"columns": columns[:DESCRIBED_COLUMNS], "column_count": len(columns)}
    more = one["column_count"] - len(one["columns"])
    lines = [_heading(one), *(f"  {_column(column)}" for column in one["columns"])]
    lines += [f"  and {more:,} more: query information_schema.columns"] if more else []
    rows = [] if sample is None else sample.lines
    lines += ["first rows:", *rows] if rows else []
    return "\n".join(lines), one | {"sample": None if sample is None else sample.structured()}


def _not_found(runtime: Runtime, name: str) -> ToolError:
    found = [one["name"] for one in datasets(runtime)]
    near = get_close_matches(name.lower()[:_NAME_CHARACTERS], map(str.lower, found), n=3)
    names = [one for one in found if one.lower() in near] or found[:20]
    known = f"Nearest names: {', '.join(names)}." if names else "This key can see no datasets."
    return ToolError("dataset_not_found", f"There is no such dataset or view. {known}")


def resource(runtime: Runtime, name: str) -> str:
    """Return the dataset *name* as JSON. Raises ToolError."""
    _, structured = _describe(runtime, {"name": name})
    return json.dumps(structured, ensure_ascii=False)


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _heading(one: Mapping[str, Any]) -> str:
    facts = [
        _counted(one["rows"], "row") if isinstance(one["rows"], int) else "",
        f"refreshed {one['refreshed_at']}" if one["refreshed_at"] else "",
        str(one["status"]) if one["status"] not in {None, "Ready"} else "",
    ]
    shown = ", ".join(filter(None, facts))
    about = f": {_line(one['description'])}" if one["description"] else ""
    return f"{_line(one['name'])}{f' ({shown})' if shown else ''}{about}"


def _column(column: Mapping[str, Any]) -> str:
    about = f" ({_line(column['description'])})" if column["description"] else ""
    return f"{_line(column['name'])} {column['type']}{about}"


def _cut(text: str | None, characters: int) -> str | None:
    return text if text is None or len(text) <= characters else f"{text[:characters]}..."


def _line(text: str) -> str:
    """Return *text*, on one line: a name or a description must not look like more lines."""
    return text if text.isprintable() else json.dumps(text)


def _object(properties: Mapping[str, Any], required: tuple[str, ...] | None = None) -> dict[str, Any]:
    names = list(properties if required is None else required)
    return {"type": "object", "properties": dict(properties)} | ({"required": names} if names else {})


_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_COUNT = {"type": "integer"}
_ROWS = _object(
    {
        "columns": {"type": "array", "items": _object({"name": _TEXT, "type": _TEXT})},
        "rows": {
            "type": "array",
            "description": "One array a row. Numbers that a double cannot hold exactly are strings.",
            "items": {"type": "array"},
        },
        "row_count": _COUNT,
        "is_cut": {"type": "boolean", "description": "Whether the statement has more rows than these."},
    }
)
_DATASET = {
    "name": _TEXT,
    "description": _TEXT_OR_NULL,
    "status": _TEXT_OR_NULL,
    "rows": {"type": ["integer", "null"]},
    "refreshed_at": _TEXT_OR_NULL,
    "column_count": _COUNT,
    "columns": {
        "type": "array",
        "items": _object({"name": _TEXT, "type": _TEXT, "description": _TEXT_OR_NULL}),
    },
}

TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            name="list_datasets",
            title="List datasets",
            description="List the datasets and views that can be queried, with their columns, types, descriptions,"
            " number of rows and age. Call it first.",
            run=_list,
            arguments={},
            output=_object(
                {
                    "datasets": {"type": "array", "items": _object(_DATASET)},
                    "dataset_count": _COUNT,
                }
            ),
        ),
        Tool(
            name="describe_dataset",
            title="Describe a dataset",
            description="Show all columns of a dataset or view with types and descriptions, its age, and its first"
            f" {_SAMPLE_ROWS} rows, which show how values are written.",
            run=_describe,
            arguments={"name": {"type": "string", "description": "The name, as list_datasets shows it."}},
            required=("name",),
            output=_object(_DATASET | {"sample": {"anyOf": [_ROWS, {"type": "null"}]}}),
        ),
        Tool(
            name="query",
            title="Query with SQL",
            description="Run one read-only SQL statement in DuckDB's dialect. Each row is a JSON array. The result is"
            f" cut after max_rows rows or {MAX_BYTES // 1024} KiB: aggregate in SQL rather than reading many rows.",
            run=_query,
            arguments={
                "sql": {"type": "string", "description": "One statement, such as SELECT count(*) FROM orders."},
                "max_rows": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_ROWS,
                    "default": DEFAULT_ROWS,
                    "description": "How many rows to return at most.",
                },
            },
            required=("sql",),
            output=_ROWS,
        ),
    )
}
