"""
Generated statements that try to learn what a key may not see, and the data for them.

Every hidden text holds `SECRET`, and every hidden number begins with 1234567: neither can be computed from what the key
may see.
"""

import random
import re
from typing import Final

from runtimeconf.model import DatasetRule, Scope
from tests.queryengine.statements import lines

#: 200 rows of acme, among 4,000 that a key may not see.
ORDERS: Final = """
    SELECT CASE WHEN mine THEN i // 21 ELSE 1234567000 + i END AS id,
      CASE WHEN i % 63 = 0 THEN NULL WHEN mine THEN 'acme' ELSE 'SECRET tenant ' || i % 7 END AS tenant,
      CASE WHEN mine THEN (1 + i % 9)::VARCHAR ELSE 'SECRET' || i END AS code,
      CASE WHEN mine THEN (1 + i % 90)::INTEGER WHEN i % 5 = 0 THEN 0 ELSE 1234567 + i::INTEGER END AS amount,
      CASE WHEN mine THEN DATE '2020-01-01' + (i % 30)::INTEGER ELSE DATE '2090-01-01' END AS day,
      CASE WHEN i % 4 = 0 THEN NULL WHEN mine THEN '(a|b' || i % 3 || ')' ELSE '(SECRET' END AS note,
      CASE WHEN mine THEN i % 3 / 2.0 ELSE 1234567e30 + i END::DOUBLE AS score,
      'SECRET' || i || '@x' AS email, 1234567 + i AS margin
    FROM (SELECT range AS i, range % 21 = 0 AS mine FROM range(4200))
"""
GRANTS: Final = "SELECT * FROM (VALUES ('acme', 1), ('SECRET tenant 9', 1), ('acme', 2), (NULL, 3)) t(tenant, level)"
BARRED: Final = "SELECT DISTINCT tenant FROM (" + ORDERS + ") WHERE tenant LIKE 'SECRET%'"

_COLUMNS: Final = ("id", "tenant", "code", "amount", "day", "note", "score", "email")
_MASKS: Final = (("email", "'***'"),)


def _orders(row_filter: str | None, masks: tuple[tuple[str, str], ...] = _MASKS) -> Scope:
    rule = DatasetRule(dataset="orders", row_filter=row_filter, columns=_COLUMNS, masks=masks)
    return Scope(relations=frozenset({"orders"}), rules=(rule,))


#: What a key may see, by the form of the rule. All of them leave the rows of acme, but for the last two.
SCOPES: Final = {
    "constant": _orders("tenant = 'acme'"),
    "function": _orders("lower(tenant || '') LIKE 'acm%'"),
    "join": _orders(
        "(SELECT count(*) FROM runtime.main.grants g JOIN runtime.main.orders o USING (tenant) "
        "WHERE g.tenant = orders.tenant) > 0"
    ),
    "exists": _orders("EXISTS (FROM runtime.main.grants AS grants WHERE grants.tenant = orders.tenant AND level = 1)"),
    "in": _orders("tenant IN (SELECT tenant FROM runtime.main.grants)"),
    "not in": _orders("tenant NOT IN (SELECT tenant FROM runtime.main.barred)"),
    "nullable": _orders("CASE WHEN tenant = 'acme' THEN true END"),
    "several": _orders("tenant IS NOT NULL AND day < DATE '2050-01-01' AND amount BETWEEN 1 AND 90 AND id < 1000"),
    "time": _orders("tenant = 'acme' AND now() > TIMESTAMPTZ '2020-01-01'"),
    "view": Scope(relations=frozenset({"orders_of_acme"})),
    # All rows, but hardly a value.
    "columns and masks": _orders(
        None,
        (
            *(("code", "left(code, 0) || '1'"), ("day", "date_trunc('century', day)::DATE")),
            *(
                ("email", "'***'"),
                ("id", "id % 3"),
                ("amount", "CASE WHEN amount < 91 AND code <> 'SECRET' THEN amount ELSE 0 END"),
            ),
            *(("note", "CASE WHEN note NOT LIKE '%SECRET%' THEN note END"), ("score", "least(score, 1)")),
            *(("tenant", "CASE WHEN tenant = 'acme' THEN tenant END"),),
        ),
    ),
}
VIEWS: Final = {
    "orders_of_acme": "SELECT id, tenant, code, amount, day, note, score, '***' AS email FROM orders "
    "SEMI JOIN grants USING (tenant)",
    "latest": "SELECT id FROM orders WHERE tenant = 'acme' ORDER BY id DESC LIMIT 3",
}
#: What a key with a row filter sees, for an engine that has nothing else.
VISIBLE: Final = f"""
    SELECT id, tenant, code, amount, day, note, score, '***' AS email FROM ({ORDERS}) WHERE tenant = 'acme'
"""

LEAK: Final = re.compile(rb"SECRET|1234567|_k[0-9a-f]{12}", re.IGNORECASE)

VALUES: Final = tuple(lines("hidden_values.txt"))
TESTS: Final = tuple(lines("hidden_tests.txt"))
_QUERIES: Final = tuple(lines("hidden_queries.txt"))
_PLANS: Final = tuple(lines("hidden_plans.txt"))


def statement(seed: int, table: str, *, plans: bool = True) -> str:
    """Return the statement *seed* over *table*; with *plans*, it may be one that no other engine answers alike."""
    chance = random.Random(seed)
    text = chance.choice(_QUERIES + (_PLANS if plans else ()))
    while re.search(r"\{[vp]\}", text):
        test = chance.choice(TESTS)
        if chance.random() < 0.2:
            test = f"({test}) {chance.choice(('AND', 'OR'))} id {chance.choice(('<', '>'))} {chance.randrange(90)}"
        text = text.replace("{p}", f"({test})", 1).replace("{v}", chance.choice(VALUES), 1)
    return text.replace("{t}", table)
