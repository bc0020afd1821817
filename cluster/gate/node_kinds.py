"""The allowed classes of sqlglot nodes, the arguments that each may have, and the words that they write."""

from collections.abc import Mapping
from typing import Final

from sqlglot import exp

from queryengine.errors import StatementNotAllowedError
from queryengine.gate.node_kinds import Form

_BINARY: Final = "this expression"
_QUERY: Final = "with_ order limit offset"
_JOINED: Final = "joins laterals pivots sample"


def _form(parts: str = "", options: str = "") -> Form:
    return Form(frozenset(parts.split()), frozenset(options.split()))


#: By class: `parts` are judged in turn, and `options` are values without nodes.
FORMS: Final[Mapping[type[exp.Expr], Form]] = {
    # Queries.
    exp.Select: _form(
        f"{_QUERY} distinct expressions from_ joins laterals where group having qualify windows sort cluster distribute"
    ),
    exp.Union: _form(f"{_QUERY} {_BINARY}", "distinct by_name"),
    exp.Except: _form(f"{_QUERY} {_BINARY}", "distinct by_name"),
    exp.Intersect: _form(f"{_QUERY} {_BINARY}", "distinct by_name"),
    exp.Subquery: _form(f"{_QUERY} {_JOINED} this alias"),
    exp.Values: _form("expressions alias order limit offset"),
    exp.With: _form("expressions", "recursive"),
    exp.CTE: _form("this alias"),
    exp.From: _form("this"),
    exp.Table: _form(f"{_JOINED} this db catalog alias"),
    exp.TableAlias: _form("this columns"),
    exp.TableSample: _form("percent size seed bucket_numerator bucket_denominator", "method"),
    exp.Join: _form("this on using", "side kind method"),
    exp.Lateral: _form("this alias", "view outer ordinality"),
    exp.Pivot: _form("expressions fields alias", "unpivot include_nulls"),
    exp.PivotAlias: _form("this alias"),
    exp.Distinct: _form("expressions"),
    exp.Where: _form("this"),
    exp.Group: _form("expressions rollup cube grouping_sets", "all"),
    exp.GroupingSets: _form("expressions"),
    exp.Rollup: _form("expressions"),
    exp.Cube: _form("expressions"),
    exp.Having: _form("this"),
    exp.Qualify: _form("this"),
    exp.Order: _form("expressions"),
    exp.Sort: _form("expressions"),
    exp.Cluster: _form("expressions"),
    exp.Distribute: _form("expressions"),
    exp.Ordered: _form("this", "desc nulls_first"),
    exp.Limit: _form("expression"),
    exp.Offset: _form("expression"),
    exp.Window: _form("this partition_by order spec alias", "over"),
    exp.WindowSpec: _form("start end", "kind start_side end_side"),
    # Names and values.
    exp.Alias: _form("this alias"),
    exp.Aliases: _form("this expressions"),
    exp.Column: _form("this table db catalog"),
    exp.Dot: _form(_BINARY),
    exp.Identifier: _form("", "this quoted"),
    exp.Star: _form("except_"),
    exp.Literal: _form("", "this is_string"),
    exp.RawString: _form("", "this"),
    exp.HexString: _form("", "this"),
    exp.Boolean: _form("", "this"),
    exp.Null: _form(),
    exp.Placeholder: _form("", "this"),
    exp.Var: _form("", "this"),
    exp.Interval: _form("this unit"),
    exp.IntervalSpan: _form(_BINARY),
    exp.DataType: _form("this expressions", "nested"),
    exp.DataTypeParam: _form("this"),
    exp.ColumnDef: _form("this kind"),
    # Calls.
    exp.Anonymous: _form("this expressions"),
    exp.Cast: _form("this to"),
    exp.TryCast: _form("this to", "safe"),
    exp.Extract: _form(_BINARY),
    exp.Trim: _form(_BINARY, "position"),
    exp.Substring: _form("this start length"),
    exp.StrPosition: _form("this substr"),
    exp.Overlay: _form("this expression from_ for_"),
    exp.Concat: _form("expressions", "safe coalesce"),
    exp.CurrentDate: _form(),
    exp.CurrentTimestamp: _form(),
    exp.Lambda: _form("this expressions"),
    exp.Filter: _form(_BINARY),
    exp.WithinGroup: _form(_BINARY),
    exp.IgnoreNulls: _form("this"),
    exp.RespectNulls: _form("this"),
    exp.Case: _form("this ifs default"),
    exp.If: _form("this true false"),
    exp.Exists: _form("this"),
    exp.All: _form("this"),
    exp.Any: _form("this"),
    # Operators.
    exp.Paren: _form("this"),
    exp.Tuple: _form("expressions"),
    exp.Bracket: _form("this expressions"),
    exp.Between: _form("this low high"),
    exp.In: _form("this expressions query"),
    exp.Is: _form(_BINARY),
    exp.Escape: _form(_BINARY),
    exp.Collate: _form(_BINARY),
    exp.Like: _form(_BINARY, "negate"),
    exp.ILike: _form(_BINARY, "negate"),
    exp.DPipe: _form(_BINARY, "safe"),
    exp.Div: _form(_BINARY, "typed safe"),
    exp.Neg: _form("this"),
    exp.Not: _form("this"),
    exp.BitwiseNot: _form("this"),
    **dict.fromkeys(
        (
            *(exp.Add, exp.Sub, exp.Mul, exp.IntDiv, exp.Mod, exp.And, exp.Or, exp.EQ, exp.NEQ, exp.GT, exp.GTE),
            *(exp.LT, exp.LTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.RegexpLike, exp.BitwiseAnd, exp.BitwiseOr),
            *(exp.BitwiseXor, exp.BitwiseLeftShift, exp.BitwiseRightShift),
        ),
        _form(_BINARY),
    ),
}

TYPES: Final = frozenset(
    {
        *(exp.DType.BOOLEAN, exp.DType.TINYINT, exp.DType.SMALLINT, exp.DType.INT, exp.DType.BIGINT, exp.DType.FLOAT),
        *(exp.DType.DOUBLE, exp.DType.DECIMAL, exp.DType.TEXT, exp.DType.BINARY, exp.DType.DATE, exp.DType.TIMESTAMP),
        *(exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPLTZ, exp.DType.TIMESTAMPNTZ, exp.DType.ARRAY, exp.DType.MAP),
        *(exp.DType.STRUCT, exp.DType.VARIANT, exp.DType.NULL, exp.DType.TIME),
    }
)

_UNITS: Final = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")

#: The units of intervals, and of functions that accept a unit as a word.
UNITS: Final = frozenset({*_UNITS, *(f"{unit}s" for unit in _UNITS), "nanosecond", "nanoseconds"})

#: The words that EXTRACT accepts, and ALL after ORDER BY.
FIELDS: Final = UNITS | {
    *("yearofweek", "y", "yr", "yrs", "years", "qtr", "mon", "mons", "w", "d", "days", "dayofweek", "dow", "doy"),
    *("dayofweek_iso", "dow_iso", "h", "hr", "hrs", "m", "min", "mins", "s", "sec", "secs", "all"),
}

_WORDS: Final = (
    "select distinct from where group by grouping sets rollup cube with recursive having qualify window "
    "order sort cluster distribute limit offset union except intersect all name values as on using join "
    "inner left right full outer cross semi anti natural lateral view pivot unpivot for in include "
    "exclude nulls tablesample percent rows bucket out of repeatable asc desc first last partition over "
    "range between unbounded preceding following current row true false null interval to cast try_cast "
    "extract trim both leading trailing substring position overlay placing concat current_date "
    "current_timestamp filter within ignore respect case when then else end exists any and or not is like "
    "ilike rlike escape collate div array map struct boolean tinyint smallint int bigint float double "
    "decimal string binary date timestamp timestamp_ltz timestamp_ntz variant void time"
)

#: The lower-case words, apart from functions, in the text that is sent.
WORDS: Final = FIELDS | frozenset(_WORDS.split())

#: Constructs that are refused with a specific reason.
_REFUSED: Final[Mapping[str, str]] = {
    **{
        verb: f"{verb.upper()} statements are not allowed, even in a WITH clause: this endpoint is read-only."
        for verb in ("delete", "insert", "update", "merge", "create", "drop", "alter", "command", "set", "use", "copy")
    },
    "version": "VERSION and TIMESTAMP AS OF are not allowed: a dataset has no history.",
    "when": "VERSION and TIMESTAMP AS OF are not allowed: a dataset has no history.",
    "querytransform": "TRANSFORM ... USING is not allowed: it runs programs.",
    "kwarg": "Named arguments are not allowed: write the arguments in order.",
    "propertyeq": "Named arguments are not allowed: write the arguments in order.",
}


def known(node: exp.Expr) -> Form:
    """
    Return the form of *node*.

    Raises:
        StatementNotAllowedError: The node's class or one of its arguments is not allowed.
    """
    form = FORMS.get(type(node))
    if form is None:
        raise _not_allowed(type(node).__name__.lower(), type(node).__name__)
    for key, value in node.args.items():
        if _is_absent(value) or key in form.parts:
            continue
        if key not in form.options or isinstance(value, exp.Expr | list):
            raise _not_allowed(key, f"{type(node).__name__} with {key}")
    return form


def _is_absent(value: object) -> bool:
    return value is None or value is False or value == []


def _not_allowed(construct: str, what: str) -> StatementNotAllowedError:
    what = what.rstrip("_").replace("_", " ").lower()
    message = f"The statement has a construct that is not allowed here ({what})."
    return StatementNotAllowedError(_REFUSED.get(construct, message))
