"""When each error code is sent. `sqlapi.error_table` and the HTTP server decide with which status."""

from collections.abc import Iterable, Mapping

from sqlapi.error_table import INTERNAL_CODE, STATUSES

#: Codes that no exception class has: of DRF, of a bug, and of requests that `httpserver.refusals` refuses.
_OTHER_STATUSES: Mapping[str, int] = {
    "missing_key": 401,
    "invalid_key": 401,
    INTERNAL_CODE: 500,
    "malformed_request": 400,
    "uri_too_long": 414,
    "expectation_failed": 417,
    "headers_too_large": 431,
    "unsupported_transfer_coding": 501,
}

#: The status of each code.
STATUS_OF: Mapping[str, int] = {
    **{str(vars(kind)["code"]): status for kind, status in STATUSES.items() if "code" in vars(kind)},
    **_OTHER_STATUSES,
}

#: When each code is sent, in CommonMark. The log alone shows the codes in `LOG_ONLY`.
WHEN: Mapping[str, str] = {
    "malformed_request": "the request is not well-formed HTTP",
    "invalid_host": "`Host` is missing, malformed or not allowed",
    "invalid_parameter": "a parameter in the query string is invalid",
    "invalid_body": "the body is not UTF-8, is shorter than announced, or is badly framed",
    "invalid_json": "the body is not the JSON that the route expects",
    "request_error": "something else is wrong with the request",
    "missing_key": "a key is needed and none was sent",
    "invalid_key": "the credential is not a valid key",
    "not_permitted": "the key has no right to do this",
    "cross_site_request": "a web page on another site sent it while authentication was off",
    "not_found": "there is no such route",
    "query_not_found": "no running or queued statement has this id",
    "history_disabled": "the runtime remembers no statements: `runtime.history.enabled` is false",
    "method_not_allowed": "the route does not support the method",
    "not_acceptable": "`Accept` lists no type that is available",
    "request_timeout": "the headers took longer than 15 s, or the body longer than 30 s; less if all connections are "
    "taken",
    "length_required": "the server cannot read a chunked body",
    "body_too_large": "the body is larger than `runtime.http.max_body_bytes`",
    "uri_too_long": "the request line is too long",
    "unsupported_charset": "the body is declared as something other than UTF-8",
    "unsupported_content_encoding": "the body is compressed",
    "expectation_failed": "`Expect` has a value that is not supported",
    "rate_limited": "the key has made as many requests as its `requests_per_minute` allows",
    "headers_too_large": "the headers are too large or too many",
    "unsupported_transfer_coding": "the transfer coding is not chunked",
    "empty_statement": "there is nothing but white space and comments",
    "sql_syntax_error": "the statement cannot be parsed, or is nested too deeply",
    "sql_error": "the statement names something unknown, or fails on the data",
    "invalid_parameters": "the parameters do not match the statement",
    "statement_error": "the statement is invalid in another way",
    "statement_not_allowed": "the statement does something that is not on the allowlist",
    "client_closed_request": "the client disconnected, and the statement was stopped (in the log only)",
    "query_error": "the engine failed",
    "answer_cut": "the response broke off after it began (in the log only)",
    "engine_busy": "all workers are busy and the queue is full, or the wait was too long; or this key used every "
    "worker and another key needed one",
    "dataset_not_loaded": "a dataset that the statement reads, directly or through a view, was never loaded; `detail` "
    "names it. Statements on other datasets still work.",
    "engine_unavailable": "the engine is starting, stopping, or cannot be reached",
    "engine_worker_died": "the process that ran the statement died; the next statement works",
    "query_cancelled": "the statement was cancelled; no `Retry-After`",
    "query_timeout": "the statement ran longer than `runtime.query.timeout`",
    "resource_limit": "the statement used up its memory or temporary space",
    "acceleration_disabled": "the dataset is read only once, at startup",
    "time_column_missing": "an append was requested, but the dataset has no `time_column`",
    "dataset_not_found": "no dataset has this name",
    "datasets_unavailable": "the refresh process does not answer at the moment",
    "telemetry_unavailable": "history and statistics cannot be read at the moment",
    "telemetry_error": "history and statistics cannot be read",
    "internal_error": "an unexpected error occurred",
    "configuration_error": "the configuration of this process cannot be used",
    "state_directory_error": "the state directory cannot be used",
    "key_salt_error": "the salt of the key digests cannot be used",
    "authentication_error": "authentication failed in another way",
    "source_error": "a source cannot be read",
    "schema_changed": "the columns of a source have changed",
    "source_empty": "a source that had rows has none",
    "snapshot_error": "a snapshot cannot be made or read",
    "shared_storage_error": "the storage of shared snapshots does not answer, or refuses",
    "dataset_error": "a dataset failed in another way",
    "authentication_unavailable": "this process has not loaded its keys, so it lets nobody in",
}

#: Nobody receives these: the client is gone, or its answer has begun with another status.
LOG_ONLY = frozenset({"client_closed_request", "answer_cut"})


def codes_of(*bases: type[Exception]) -> tuple[str, ...]:
    """Return the codes of *bases* and their subclasses, in the order of the error table."""
    return tuple(kind.code for kind in STATUSES if issubclass(kind, bases) and kind.code not in LOG_ONLY)  # type: ignore[attr-defined]


def by_status(codes: Iterable[str]) -> dict[int, list[str]]:
    """Return *codes* by their statuses; both are sorted."""
    found: dict[int, list[str]] = {}
    for code in sorted(set(codes)):
        found.setdefault(STATUS_OF[code], []).append(code)
    return dict(sorted(found.items()))
