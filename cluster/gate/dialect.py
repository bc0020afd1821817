"""Spark SQL as the gate reads and writes it: sqlglot's dialect without its function tables and rewriting."""

from typing import Any, Final

from sqlglot import exp, generator
from sqlglot.dialects.dialect import trim_sql
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel
from sqlglot.generators.spark import SparkGenerator
from sqlglot.parsers.spark import SparkParser
from sqlglot.tokenizer_core import TokenType

from cluster.gate.text import MARK, literal, quoted_name

#: Calls with special syntax. Every other call stays a name with arguments.
_SYNTAX: Final = ("CAST", "TRY_CAST", "EXTRACT", "TRIM", "SUBSTR", "SUBSTRING", "POSITION", "OVERLAY")

#: The prefix of the position of a `?` in the text, used as the name of an unnamed parameter.
UNNAMED: Final = "?"

_FUNCTION_PARSERS: Final = {**SparkParser.FUNCTION_PARSERS, "SUBSTR": SparkParser.FUNCTION_PARSERS["SUBSTRING"]}

#: The types of literals like DATE '2026-11-30', which are casts for sqlglot.
_LITERAL_TYPES: Final = (
    exp.DType.DATE,
    exp.DType.TIMESTAMPTZ,
    exp.DType.TIMESTAMPLTZ,
    exp.DType.TIMESTAMPNTZ,
    exp.DType.TIME,
)


class _Parser(SparkParser):
    FUNCTIONS = {}
    FUNCTION_PARSERS = {name: _FUNCTION_PARSERS[name] for name in _SYNTAX}
    JOINS_HAVE_EQUAL_PRECEDENCE = False
    ARRAY_CONSTRUCTORS = {}  # array(1, 2)[0] is a member of an array, not the array [0]
    NO_PAREN_FUNCTION_PARSERS = {"CASE": SparkParser.NO_PAREN_FUNCTION_PARSERS["CASE"]}

    PLACEHOLDER_PARSERS = {
        **SparkParser.PLACEHOLDER_PARSERS,
        TokenType.PLACEHOLDER: lambda self: exp.Placeholder(this=f"{UNNAMED}{self._prev.start}"),
    }

    def _parse_parameter(self) -> exp.Placeholder:  # type: ignore[override]  # $name is :name here
        if self._prev.text != "$" or not self._advance_any():
            self.raise_error("Expected the name of a parameter")
        return exp.Placeholder(this=self._prev.text)

    def _parse_interval(self, *args: Any, **kwargs: Any) -> Any:
        interval = super()._parse_interval(*args, **kwargs)
        # INTERVAL 1 DAY 2 HOURS has become a sum, but it is one value, as in x - INTERVAL 1 DAY 2 HOURS.
        return exp.Paren(this=interval) if isinstance(interval, exp.Add) else interval

    def _warn_unsupported(self) -> None:
        """Do not log the statement."""


class _Generator(SparkGenerator):
    EXPRESSIONS_WITHOUT_NESTED_CTES = set()
    SUPPORTS_TEMPORAL_PRECISION = True
    TABLESAMPLE_SEED_KEYWORD = "REPEATABLE"
    TYPE_MAPPING = {**SparkGenerator.TYPE_MAPPING, exp.DType.TIME: "TIME"}
    TRANSFORMS = {
        **generator.Generator.TRANSFORMS,
        exp.IntDiv: lambda self, node: self.binary(node, "DIV"),
        exp.NullSafeEQ: lambda self, node: self.binary(node, "<=>"),
        exp.RegexpLike: lambda self, node: self.binary(node, "RLIKE"),
        exp.StrPosition: lambda self, node: self.func("position", node.args["substr"], node.this),
        exp.Trim: trim_sql,
        exp.TryCast: lambda self, node: self.trycast_sql(node) if node.args.get("safe") else self.cast_sql(node),
    }

    def cast_sql(self, expression: exp.Cast, safe_prefix: str | None = None) -> str:
        # A literal with a type is a Cast; CAST(x AS type) is a TryCast that is not `safe`.
        if type(expression) is exp.Cast and expression.this.is_string and expression.to.is_type(*_LITERAL_TYPES):
            return f"{self.sql(expression, 'to')} {self.sql(expression, 'this')}"
        return super().cast_sql(expression, safe_prefix)

    def concat_sql(self, expression: exp.Concat) -> str:
        # Adjacent literals are one literal. A call of concat is an Anonymous.
        return literal("".join(part.name for part in expression.expressions))

    def not_sql(self, expression: exp.Not) -> str:
        if isinstance(expression.this, exp.Is):
            return f"{self.sql(expression.this, 'this')} IS NOT {self.sql(expression.this, 'expression')}"
        return super().not_sql(expression)

    def escape_str(self, text: str, *_: Any, **__: Any) -> str:
        return literal(text)[1:-1]

    def rawstring_sql(self, expression: exp.RawString) -> str:
        return literal(expression.this)

    def identifier_sql(self, expression: exp.Identifier) -> str:
        return expression.this if expression.this.startswith(MARK) else quoted_name(expression.this)

    def placeholder_sql(self, expression: exp.Placeholder) -> str:
        return f":_{expression.name}"

    def lateral_sql(self, expression: exp.Lateral) -> str:
        if not expression.args.get("view"):
            return super().lateral_sql(expression)
        alias = expression.args["alias"]
        outer = "OUTER " if expression.args.get("outer") else ""
        columns = self.expressions(alias, key="columns", flat=True)
        table = self.sql(alias, "this")
        return f" LATERAL VIEW {outer}{self.sql(expression, 'this')} {table}{f' AS {columns}' if columns else ''}"


class Dialect(Spark):
    """Spark SQL without sqlglot's knowledge of functions."""

    Parser = _Parser
    Generator = _Generator


DIALECT: Final = Dialect()


def written(tree: exp.Expr) -> str:
    """Return *tree* as text. A construct that Spark does not have raises an `UnsupportedError`."""
    return str(
        DIALECT.generate(
            tree, copy=False, comments=False, normalize_functions=False, unsupported_level=ErrorLevel.IMMEDIATE
        )
    )
