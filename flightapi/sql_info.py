"""
The result of GetSqlInfo: facts about the server and its SQL, by number (`FlightSql.proto`, enum SqlInfo).

The value of a fact has one of six types. The type does not always follow the description in the protocol: ordinals are
bigints where Arrow's own server and JDBC driver use bigints, because clients fail on any other type.
"""

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from flightapi.prepared import IDLE_S
from flightapi.protocol.messages import enum_values

SERVER_NAME: Final = "Querykeep"

#: A test compares it with pyproject.toml.
VERSION: Final = "0.1.0"

#: The types of values in the order of their type codes.
_STRING, _BOOL, _BIGINT, _INT32, _STRINGS, _CONVERSIONS = range(6)

_KINDS: Final = [
    pa.field("string_value", pa.string(), nullable=False),
    pa.field("bool_value", pa.bool_(), nullable=False),
    pa.field("bigint_value", pa.int64(), nullable=False),
    pa.field("int32_bitmask", pa.int32(), nullable=False),
    pa.field("string_list", pa.list_(pa.string()), nullable=False),
    pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32())), nullable=False),
]

ANSWER: Final = pa.schema(
    [
        pa.field("info_name", pa.uint32(), nullable=False),
        pa.field("value", pa.dense_union(_KINDS), nullable=False),
    ]
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


#: The words that DuckDB accepts as names only in quotes. A test compares this list with DuckDB.
KEYWORDS: Final = _words(
    "all analyse analyze and any array as asc asymmetric both case cast check collate column constraint create default"
    " deferrable desc describe distinct do else end except false fetch for foreign from group having in initially"
    " intersect into lambda lateral leading limit not null offset on only or order pivot pivot_longer pivot_wider"
    " placing primary qualify references returning select show some summarize symmetric table then to trailing true"
    " union unique unpivot using variadic when where window with"
)

#: Allowed functions that other databases also have. A test runs them through the gate.
NUMERIC_FUNCTIONS: Final = _words(
    "abs acos asin atan atan2 cbrt ceil ceiling cos cot degrees exp floor gamma gcd greatest lcm least ln log log10"
    " log2 mod pi pow power radians random round sign sin sqrt tan trunc"
)
STRING_FUNCTIONS: Final = _words(
    "ascii bit_length chr concat concat_ws contains format instr lcase left length levenshtein lower lpad ltrim"
    " md5 prefix printf regexp_extract regexp_matches regexp_replace repeat replace reverse right rpad rtrim sha256"
    " split_part starts_with strlen strpos substr substring suffix translate trim ucase unicode upper"
)
DATETIME_FUNCTIONS: Final = _words(
    "age century current_date date_diff date_part date_sub date_trunc day dayname dayofmonth dayofweek dayofyear"
    " decade epoch epoch_ms hour last_day make_date make_time make_timestamp microsecond millennium millisecond"
    " minute month monthname now quarter second strftime strptime time_bucket to_timestamp today week weekday year"
)
SYSTEM_FUNCTIONS: Final = _words("coalesce ifnull nullif typeof")

_NUMBERS: Final = ("BIGINT", "DECIMAL", "FLOAT", "INTEGER", "NUMERIC", "REAL", "SMALLINT", "TINYINT")
_TEXTS: Final = ("CHAR", "LONGVARCHAR", "VARCHAR")
_BYTES: Final = ("BINARY", "LONGVARBINARY", "VARBINARY")
_INTERVALS: Final = ("INTERVAL_DAY_TIME", "INTERVAL_YEAR_MONTH")

#: Conversions that CAST supports, from each type in the first group to each type in the second.
CASTS: Final = (
    (_NUMBERS, (*_NUMBERS, *_TEXTS, "BIT")),
    (("BIT",), ("BIT", *_NUMBERS, *_TEXTS)),
    (_TEXTS, (*_TEXTS, *_NUMBERS, *_BYTES, *_INTERVALS, "BIT", "DATE", "TIME", "TIMESTAMP")),
    (_BYTES, (*_BYTES, *_TEXTS)),
    (("DATE",), ("DATE", "TIMESTAMP", *_TEXTS)),
    (("TIME",), ("TIME", *_TEXTS)),
    (("TIMESTAMP",), ("TIMESTAMP", "DATE", "TIME", *_TEXTS)),
    (_INTERVALS, (*_INTERVALS, *_TEXTS)),
)


def _conversions() -> list[tuple[int, list[int]]]:
    numbers = enum_values("SqlSupportsConvert")
    return [
        (numbers[f"SQL_CONVERT_{source}"], sorted(numbers[f"SQL_CONVERT_{target}"] for target in targets))
        for sources, targets in CASTS
        for source in sources
    ]


#: Limits that do not exist or are unknown. Their value is 0.
_NO_LIMITS: Final = _words(
    "SQL_MAX_BINARY_LITERAL_LENGTH SQL_MAX_CHAR_LITERAL_LENGTH SQL_MAX_COLUMN_NAME_LENGTH"
    " SQL_MAX_COLUMNS_IN_GROUP_BY SQL_MAX_COLUMNS_IN_INDEX SQL_MAX_COLUMNS_IN_ORDER_BY SQL_MAX_COLUMNS_IN_SELECT"
    " SQL_MAX_COLUMNS_IN_TABLE SQL_MAX_CONNECTIONS SQL_MAX_CURSOR_NAME_LENGTH SQL_MAX_INDEX_LENGTH"
    " SQL_DB_SCHEMA_NAME_LENGTH SQL_MAX_PROCEDURE_NAME_LENGTH SQL_MAX_CATALOG_NAME_LENGTH SQL_MAX_ROW_SIZE"
    " SQL_MAX_STATEMENTS SQL_MAX_TABLE_NAME_LENGTH SQL_MAX_TABLES_IN_SELECT SQL_MAX_USERNAME_LENGTH"
)

#: Facts that are true.
_TRUE: Final = _words(
    "FLIGHT_SQL_SERVER_READ_ONLY FLIGHT_SQL_SERVER_SQL FLIGHT_SQL_SERVER_CANCEL SQL_ALL_TABLES_ARE_SELECTABLE"
    " SQL_SUPPORTS_COLUMN_ALIASING SQL_NULL_PLUS_NULL_IS_NULL SQL_SUPPORTS_TABLE_CORRELATION_NAMES"
    " SQL_SUPPORTS_EXPRESSIONS_IN_ORDER_BY SQL_SUPPORTS_ORDER_BY_UNRELATED SQL_SUPPORTS_LIKE_ESCAPE_CLAUSE"
    " SQL_CATALOG_AT_START SQL_CORRELATED_SUBQUERIES_SUPPORTED SQL_MAX_ROW_SIZE_INCLUDES_BLOBS"
)
#: Facts that are false. SQL_NAMED_PARAMETERS_SUPPORTED is about stored procedures.
_FALSE: Final = _words(
    "FLIGHT_SQL_SERVER_SUBSTRAIT FLIGHT_SQL_SERVER_BULK_INGESTION FLIGHT_SQL_SERVER_INGEST_TRANSACTIONS_SUPPORTED"
    " SQL_DDL_CATALOG SQL_DDL_SCHEMA SQL_DDL_TABLE SQL_SUPPORTS_DIFFERENT_TABLE_CORRELATION_NAMES"
    " SQL_SUPPORTS_NON_NULLABLE_COLUMNS SQL_SUPPORTS_INTEGRITY_ENHANCEMENT_FACILITY"
    " SQL_SELECT_FOR_UPDATE_SUPPORTED SQL_STORED_PROCEDURES_SUPPORTED SQL_TRANSACTIONS_SUPPORTED"
    " SQL_DATA_DEFINITION_CAUSES_TRANSACTION_COMMIT SQL_DATA_DEFINITIONS_IN_TRANSACTIONS_IGNORED"
    " SQL_BATCH_UPDATES_SUPPORTED SQL_SAVEPOINTS_SUPPORTED SQL_NAMED_PARAMETERS_SUPPORTED SQL_LOCATORS_UPDATE_COPY"
    " SQL_STORED_FUNCTIONS_USING_CALL_SYNTAX_SUPPORTED"
)

#: The facts that are the same for every server: the type and value by name.
_CONSTANT_FACTS: Final[dict[str, tuple[int, object]]] = {
    **dict.fromkeys(_TRUE, (_BOOL, True)),
    **dict.fromkeys(_FALSE, (_BOOL, False)),
    "FLIGHT_SQL_SERVER_NAME": (_STRING, SERVER_NAME),
    "FLIGHT_SQL_SERVER_VERSION": (_STRING, VERSION),
    "FLIGHT_SQL_SERVER_STATEMENT_TIMEOUT": (_INT32, round(IDLE_S * 1000)),  # of an unused prepared statement
    "FLIGHT_SQL_SERVER_ARROW_VERSION": (_STRING, pa.__version__),
    "FLIGHT_SQL_SERVER_TRANSACTION": (_INT32, 0),  # none
    "FLIGHT_SQL_SERVER_TRANSACTION_TIMEOUT": (_INT32, 0),
    "SQL_IDENTIFIER_CASE": (_BIGINT, 1),  # names keep their case, but match in any case
    "SQL_IDENTIFIER_QUOTE_CHAR": (_STRING, '"'),
    "SQL_QUOTED_IDENTIFIER_CASE": (_BIGINT, 1),
    "SQL_NULL_ORDERING": (_BIGINT, 3),  # at the end, ascending and descending
    "SQL_KEYWORDS": (_STRINGS, KEYWORDS),
    "SQL_NUMERIC_FUNCTIONS": (_STRINGS, NUMERIC_FUNCTIONS),
    "SQL_STRING_FUNCTIONS": (_STRINGS, STRING_FUNCTIONS),
    "SQL_SYSTEM_FUNCTIONS": (_STRINGS, SYSTEM_FUNCTIONS),
    "SQL_DATETIME_FUNCTIONS": (_STRINGS, DATETIME_FUNCTIONS),
    "SQL_SEARCH_STRING_ESCAPE": (_STRING, "\\"),
    "SQL_EXTRA_NAME_CHARACTERS": (_STRING, "$"),
    "SQL_SUPPORTS_CONVERT": (_CONVERSIONS, _conversions()),
    "SQL_SUPPORTED_GROUP_BY": (_INT32, 0b11),
    "SQL_SUPPORTED_GRAMMAR": (_INT32, 0b011),  # minimum and core
    "SQL_ANSI92_SUPPORTED_LEVEL": (_INT32, 0b001),  # entry
    "SQL_OUTER_JOINS_SUPPORT_LEVEL": (_INT32, 2),  # full
    "SQL_SCHEMA_TERM": (_STRING, "schema"),
    "SQL_PROCEDURE_TERM": (_STRING, "procedure"),
    "SQL_CATALOG_TERM": (_STRING, "catalog"),
    "SQL_SCHEMAS_SUPPORTED_ACTIONS": (_INT32, 0),
    "SQL_CATALOGS_SUPPORTED_ACTIONS": (_INT32, 0),
    "SQL_SUPPORTED_POSITIONED_COMMANDS": (_INT32, 0),
    "SQL_SUPPORTED_SUBQUERIES": (_INT32, 0b1111),
    "SQL_SUPPORTED_UNIONS": (_INT32, 0b11),
    **dict.fromkeys(_NO_LIMITS, (_BIGINT, 0)),
    "SQL_DEFAULT_TRANSACTION_ISOLATION": (_BIGINT, 0),  # none
    "SQL_SUPPORTED_TRANSACTIONS_ISOLATION_LEVELS": (_INT32, 0b1),  # none
    "SQL_SUPPORTED_RESULT_SET_TYPES": (_INT32, 0b10),  # forward only
    "SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_UNSPECIFIED": (_INT32, 0),
    "SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_FORWARD_ONLY": (_INT32, 0b10),  # read only
    "SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_SCROLL_SENSITIVE": (_INT32, 0),
    "SQL_SUPPORTED_CONCURRENCIES_FOR_RESULT_SET_SCROLL_INSENSITIVE": (_INT32, 0),
}


def answer(ids: Sequence[int], max_statement_bytes: int) -> pa.Table:
    """Return the facts with these numbers in ascending order, or all facts if *ids* is empty. Skip unknown numbers."""
    named = _CONSTANT_FACTS | {"SQL_MAX_STATEMENT_LENGTH": (_BIGINT, max_statement_bytes)}
    known = {_NUMBERS_OF[name]: fact for name, fact in named.items()}
    wanted = sorted(known.keys() & set(ids) if ids else known)
    values: list[list[object]] = [[] for _ in _KINDS]
    kinds, offsets = [], []
    for number in wanted:
        kind, value = known[number]
        kinds.append(kind)
        offsets.append(len(values[kind]))
        values[kind].append(value)
    # `UnionArray.from_dense` would make all six children nullable.
    union = pa.Array.from_buffers(
        ANSWER.field("value").type,
        len(wanted),
        [None, pa.array(kinds, pa.int8()).buffers()[1], pa.array(offsets, pa.int32()).buffers()[1]],
        children=[pa.array(column, field.type) for column, field in zip(values, _KINDS, strict=True)],
    )
    return pa.Table.from_arrays([pa.array(wanted, pa.uint32()), union], schema=ANSWER)


_NUMBERS_OF: Final = enum_values("SqlInfo")
