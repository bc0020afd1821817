"""
The errors of a statement.

::

    QueryError
    ├── StatementError                 the statement is wrong (the caller can correct it)
    │   ├── EmptyStatementError        only white space and comments
    │   ├── SqlSyntaxError             cannot be parsed, or is nested too deeply
    │   ├── SqlError                   parsed, but refers to something unknown or fails on the data
    │   ├── ParameterError             the parameters do not fit the statement
    │   └── StatementNotAllowedError   parsed, but not on the allowlist
    ├── QueryTimeoutError              ran longer than its limit
    ├── QueryCancelledError            the caller left or cancelled it
    ├── ResourceLimitError             memory or temporary space is used up
    ├── RateLimitError                 the key has used up its requests per minute
    ├── EngineBusyError                no free slot, and the queue is full or was too slow
    ├── EngineWorkerDiedError          the process that ran the statement ended
    └── EngineUnavailableError         the engine is starting or stopping, or cannot be reached
        └── DatasetNotLoadedError      a dataset that the statement reads has no data yet

`code` is public: it appears in HTTP bodies, in Flight messages and in the documentation.
"""

import re

#: If an outer join adds a null to a column of arrays, this length may be whatever the memory held before.
LENGTH_OF_LIST = re.compile(r"\b(list) (?:with|of) length \d+ (?=to array\b)", re.IGNORECASE)
#: Matches internal DuckDB errors that are caused by an unexpected failure to allocate memory.
WANT_OF_MEMORY = re.compile(
    r"Memory allocation failure|std::bad_alloc|\bout of memory\b|\bnot enough memory\b", re.IGNORECASE
)


class QueryError(Exception):
    """
    Base of this package's errors. `str()` is a sentence for the caller, without tracebacks, paths or versions.

    `timings` are the statement's timings until it failed (`queryengine.engine.timings_of`), if it reached the engine.
    """

    code = "query_error"
    timings: object = None


class StatementError(QueryError):
    """The statement is wrong. The caller can correct it."""

    code = "statement_error"


class EmptyStatementError(StatementError):
    """The statement is empty."""

    code = "empty_statement"

    def __init__(self) -> None:
        super().__init__("The statement is empty: send one SQL statement.")


class SqlSyntaxError(StatementError):
    """The statement cannot be parsed."""

    code = "sql_syntax_error"


class SqlError(StatementError):
    """The statement refers to something unknown, or fails on the data."""

    code = "sql_error"


class ParameterError(StatementError):
    """The parameters do not fit the statement."""

    code = "invalid_parameters"


class StatementNotAllowedError(StatementError):
    """The statement does something that is not on the allowlist."""

    code = "statement_not_allowed"


class QueryTimeoutError(QueryError):
    """The statement ran longer than its limit."""

    code = "query_timeout"

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        super().__init__(f"The query was cancelled after {limit_s:g} s, its time limit.")


class QueryCancelledError(QueryError):
    """The caller left or cancelled the statement."""

    code = "query_cancelled"

    def __init__(self) -> None:
        super().__init__("The query was cancelled.")


class ResourceLimitError(QueryError):
    """Memory or temporary space is used up."""

    code = "resource_limit"


class EngineBusyError(QueryError):
    """
    There is no free slot: the queue is full or was too slow, or another key needed the slot (*reclaimed*).

    The caller should try again after `retry_after_s` seconds. *reason* begins the message.
    """

    code = "engine_busy"

    def __init__(self, retry_after_s: int = 1, *, reclaimed: bool = False, reason: str = "The engine is busy") -> None:
        self.retry_after_s, self.is_reclaimed = retry_after_s, reclaimed
        if reclaimed:
            reason = "This API key was using every worker when another key needed one"
        super().__init__(f"{reason}: try again in {retry_after_s} s.")


class RateLimitError(QueryError):
    """The key has used up its requests per minute. The caller should try again after `retry_after_s` seconds."""

    code = "rate_limited"

    def __init__(self, limit: int, retry_after_s: int) -> None:
        self.limit, self.retry_after_s = limit, retry_after_s
        super().__init__(
            f"This API key may make {limit:,} requests a minute (requests_per_minute): try again in {retry_after_s} s."
        )


class EngineWorkerDiedError(QueryError):
    """The process that ran the statement ended: it crashed, was killed, or ran out of memory."""

    code = "engine_worker_died"

    def __init__(self) -> None:
        super().__init__("The engine worker running the statement ended. Other statements are not affected.")


class EngineUnavailableError(QueryError):
    """The engine cannot respond at the moment."""

    code = "engine_unavailable"


class DatasetNotLoadedError(EngineUnavailableError):
    """A dataset that the statement reads, directly or through a view, has no data yet. The message names it."""

    code = "dataset_not_loaded"
