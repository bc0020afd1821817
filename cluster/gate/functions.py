"""The functions that a statement may call on a cluster, from the allowlist in `function_list.txt`."""

from collections.abc import Mapping
from functools import cache
from typing import Final

from queryengine.errors import SqlError, StatementNotAllowedError
from queryengine.gate.functions import read_judgements

#: Names without parentheses that engines treat as calls if no such column exists.
CALLED_BY_NAME: Final = frozenset({"current_date", "current_time", "current_timestamp", "localtime"})

#: The same names for refused functions.
REFUSED_BY_NAME: Final = frozenset({"current_user", "session_user", "user"})

#: The allowed functions whose results depend on more than their arguments: time, random numbers, partitions.
NONDETERMINISTIC: Final = CALLED_BY_NAME | {
    *("curdate", "current_timezone", "localtimestamp", "now", "to_unix_timestamp", "unix_timestamp"),
    *("monotonically_increasing_id", "rand", "randn", "random", "randstr", "shuffle", "spark_partition_id"),
    *("uniform", "uuid", "aes_encrypt"),  # AES uses a random initialization vector.
}

#: Functions whose first argument is a time unit, written as a word.
TAKE_A_UNIT: Final = frozenset(
    {"date_add", "date_diff", "dateadd", "datediff", "timestampadd", "timestampdiff"},
)


def is_refused_by_name(name: str) -> bool:
    """
    Return whether a column *name* could be a refused function.

    Spark compares letter by letter, like Java's `equalsIgnoreCase`: a long s equals s, and a dotted capital I equals i.
    """
    return "".join(letter.upper().lower()[:1] for letter in name) in REFUSED_BY_NAME


@cache
def judgements() -> Mapping[str, Mapping[str, str | None]]:
    """See `queryengine.gate.functions.judgements`."""
    return read_judgements(__package__)


def check(name: str, kind: str) -> None:
    """
    Check that the function *name* (in lower case) may be called as a *kind*, "scalar" or "table".

    Raises:
        StatementNotAllowedError: The function is refused.
        SqlError: The function does not exist.
    """
    kinds = judgements().get(name, {})
    if kinds.get(kind, "") is None:
        return
    if reason := next(filter(None, (kinds.get(kind), *kinds.values())), None):
        raise StatementNotAllowedError(f"Function '{name}' is not allowed: {reason}.")
    if kinds:
        gives = "a table: call it after FROM" if kind == "scalar" else "a value, not a table: call it after SELECT"
        raise SqlError(f"Function '{name}' returns {gives}.")
    raise SqlError(f"Function '{name[:80]}' does not exist.")
