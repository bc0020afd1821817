"""Gates the rules of keys. Row filters and masks are expressions, and the gate keeps each within its parentheses."""

import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Final

from queryengine.engine import GatedStatement, StatementGate
from queryengine.errors import SqlSyntaxError, StatementError, StatementNotAllowedError
from queryengine.execution.views import unsorted_datasets
from queryengine.gate.arrays import NOT_HERE
from queryengine.gate.gate import Gate
from queryengine.gate.lexer import scan
from queryengine.gate.rewriting import has_query_word
from queryengine.gate.rule_names import Names
from queryengine.key_catalog import GatedRule
from queryengine.values import qualified
from runtimeconf.errors import ConfigFault
from runtimeconf.model import DatasetRule, RuntimeConfig

#: Functions that return a different value for each row or call. A filter with them would show different rows each time.
_VOLATILE: Final = frozenset(
    {"gen_random_uuid", "rand", "random", "reservoir_quantile", "setseed", "uuid", "uuidv4", "uuidv7"}
)

#: The place of a syntax error in the gate's messages.
_LINE: Final = re.compile(r"\(line (\d+),")

#: An expression in the form that the gate admits, the gated query for its value, and its names.
_Expression = tuple[str, GatedStatement, Names]


def gate_rule(rule: DatasetRule, relations: frozenset[str], gate: StatementGate) -> GatedRule:
    """
    Gate *rule*. Its filter may read all declared *relations*, but its masks only their own dataset.

    Raises:
        StatementError: An expression cannot be parsed or is not allowed. The message names the field.
    """
    if not isinstance(gate, Gate):
        raise StatementNotAllowedError("rules are supported only with DuckDB as the engine.")
    found = [_named("row_filter", rule.row_filter, rule, relations, gate)] if rule.row_filter is not None else []
    masks = [_named(f"masks.{column}", sql, rule, frozenset({rule.dataset}), gate) for column, sql in rule.masks]
    statements = [statement for _, statement, _ in (*found, *masks)]
    return GatedRule(
        rule=rule,
        row_filter=found[0][0] if found else None,
        masks={column: sql for (column, _), (sql, *_) in zip(rule.masks, masks, strict=True)},
        relations=frozenset({rule.dataset}).union(*(one.relations for one in statements)),
        macros=frozenset[str]().union(*(one.macros for one in statements)),
        deterministic=all(one.deterministic for one in statements),
        columns=frozenset().union(*(names.columns for *_, names in (*found, *masks))),
        uncast=frozenset().union(*(names.uncast for *_, names in (*found, *masks))),
        has_subquery=any(has_query_word(scan(sql)) for sql, *_ in (*found, *masks)),
    )


def gated_or_unavailable(rule: DatasetRule, relations: frozenset[str], gate: StatementGate) -> GatedRule:
    """Gate *rule* as `gate_rule` does. If it is refused, return a rule with the error."""
    try:
        return gate_rule(rule, relations, gate)
    except StatementError as error:
        return GatedRule(rule=rule, error=str(error))


def faults(config: RuntimeConfig, gate: StatementGate) -> Iterable[ConfigFault]:
    """Yield a configuration error for each key rule that the gate refuses."""
    relations = frozenset([*(one.name.lower() for one in config.datasets), *(one.name.lower() for one in config.views)])
    for rule in config.auth.rules:
        try:
            gate_rule(rule, relations, gate)
        except StatementError as error:
            yield fault_of(rule, str(error), config.file)


def means(config: RuntimeConfig) -> Iterable[str]:
    """Yield a line for each key rule that says how the rule is enforced."""
    views = {view.name.lower() for view in config.views}
    unsorted = unsorted_datasets(config)
    for key in config.auth.named_keys:
        rules = {rule.dataset: rule for rule in key.scope.rules} if key.scope is not None else {}
        for name in sorted(rules.keys() | (views & key.scope.relations)) if key.scope is not None else ():
            is_copy = name in views | unsorted or rules[name].needs_copy
            yield f"{key.name}: {name} is {'a copy of the visible rows and values' if is_copy else 'a secure view'}"


def fault_of(rule: DatasetRule, message: str, file: Path) -> ConfigFault:
    """Return the configuration error *message* for *rule* in *file*."""
    return ConfigFault(file=file, line=rule.line, yaml_path=rule.yaml_path, message=message)


def _named(field: str, sql: str, rule: DatasetRule, relations: frozenset[str], gate: Gate) -> _Expression:
    try:
        return _expression(sql, rule, relations, gate)
    except StatementError as error:
        # The gate sees the expression from its second line on.
        message = _LINE.sub(lambda found: f"(line {max(int(found[1]) - 1, 1)},", str(error))
        raise type(error)(f"{field}: {message}") from None


def _expression(sql: str, rule: DatasetRule, relations: frozenset[str], gate: Gate) -> _Expression:
    tokens = scan(sql)  # Its brackets match, so in parentheses it is one expression or cannot be parsed.
    if tokens.size_without_end == 0:
        raise SqlSyntaxError("there is no expression.")
    if tokens.separators:
        raise SqlSyntaxError("write one expression, without a semicolon.")
    called = {token.name for token, following in pairwise(tokens.tokens) if token.name and following.text == "("}
    if volatile := sorted(called & _VOLATILE):
        raise StatementNotAllowedError(f"'{volatile[0]}' returns a different value on each call.")
    words = [token.word for token in tokens.tokens]
    if "tablesample" in words or ("using", "sample") in pairwise(words):
        raise StatementNotAllowedError("a sample returns different rows each time.")
    before, after = "SELECT (\n", f"\n) FROM {qualified(rule.dataset)}"
    statement = gate.admit(f"{before}{sql}{after}", relations)
    if statement.kind != "select" or statement.catalog is not None:
        raise StatementNotAllowedError("an expression cannot contain SHOW or information_schema.")
    if statement.parameters:
        raise StatementNotAllowedError("an expression cannot have parameters.")
    if statement.makes_arrays:
        raise StatementNotAllowedError(NOT_HERE)
    if not (statement.sql.startswith(before) and statement.sql.endswith(after)):
        raise StatementNotAllowedError("this form of expression is not allowed: write it as DuckDB prints it.")
    text, names = gate.resolved(statement.sql)
    return text, replace(statement, sql=""), names
