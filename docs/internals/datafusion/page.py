"""The page `datafusion.md`: each construct with the recorded answer of DataFusion beside that of an engine of ours."""

import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, Final, Literal

import pyarrow as pa

from docs.internals.datafusion.constructs import ANSWERS, TABLES, Construct, answer, constructs, is_same
from queryengine.cancellation import Interruption
from queryengine.engine import Query
from queryengine.errors import QueryError
from queryengine.execution.instance import EngineInstance
from queryengine.execution.views import gate_views
from queryengine.gate.gate import Gate
from queryengine.manifest import Manifest
from runtimeconf.model import RuntimeConfig, ViewConfig

PAGE: Final = ANSWERS.parents[1] / "datafusion.md"

Verdict = Literal["same", "other", "fails"]

_SHOWN_CHARACTERS: Final = 80

_HEAD = """\
# DataFusion's SQL here

`make reference` made this page: {total} constructs of DataFusion's SQL, with the answers of DataFusion {version} and of
a runtime. {same} give the same values ({share} %), {other} give others, and {fails} fail. Without
`runtime.query.datafusion_sql`, {plain} give the same values. [SQL](../sql.md#datafusion) says what a statement may use.

Each function of DataFusion's reference is among them, except four that need a file or a union (`file_row_index`,
`input_file_name`, `union_extract`, `union_tag`).

Numbers are compared by value, and a time in UTC equals the same time without a zone. Types and names are compared
separately: of the constructs with the same values, {same_types} have the same Arrow types, and {same_names} the same
names of columns. A type that differs is in the table. A name that differs is not: DataFusion calls a column without AS
after its own plan (`abs(Int64(-5))`), DuckDB after the text (`abs(-5)`), and `count(*)` is `count_star()`. Where the
name matters, write AS.
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What became of a construct: the answers have `names`, `types` and `rows`; ours has an `error` if it failed."""

    construct: Construct
    theirs: dict[str, Any]
    ours: dict[str, Any]

    @property
    def verdict(self) -> Verdict:
        """Whether the values are the same."""
        if "error" in self.ours:
            return "fails"
        return "same" if is_same(self.theirs["rows"], self.ours["rows"]) else "other"

    def has_same(self, what: Literal["names", "types"]) -> bool:
        """Whether the values are the same, and the names or types of the columns too."""
        return self.verdict == "same" and bool(self.theirs[what] == self.ours[what])


@cache
def compare(*, datafusion_sql: bool = True) -> tuple[Comparison, ...]:
    """Run each construct here, with or without what this runtime adds for DataFusion."""
    recorded = json.loads(ANSWERS.read_text(encoding="utf-8"))["answers"]
    views = tuple(ViewConfig(name=name, sql=sql) for name, sql in TABLES.items())
    with tempfile.TemporaryDirectory(prefix="querykeep-") as directory:
        state = Path(directory)
        config = RuntimeConfig(file=state / "runtime.yaml", state_dir=state, views=views)
        with closing(Gate(datafusion_sql=datafusion_sql)) as gate:
            gated = gate_views(views, frozenset(), gate, config.file)
            with closing(EngineInstance(config, Manifest(generation=1), gated, state / "tmp")) as engine:
                return tuple(Comparison(one, recorded[one.text], _ours(one.sql, gate, engine)) for one in constructs())


def page() -> str:
    """Return the text of the page."""
    compared = compare()
    counts = {verdict: sum(one.verdict == verdict for one in compared) for verdict in ("same", "other", "fails")}
    head = _HEAD.format(
        total=len(compared),
        version=json.loads(ANSWERS.read_text(encoding="utf-8"))["version"],
        share=f"{100 * counts['same'] / len(compared):.0f}",
        plain=sum(one.verdict == "same" for one in compare(datafusion_sql=False)),
        same_types=sum(one.has_same("types") for one in compared),
        same_names=sum(one.has_same("names") for one in compared),
        **counts,
    )
    return "\n".join([head, *_lines(compared)])


def _ours(sql: str, gate: Gate, engine: EngineInstance) -> dict[str, Any]:
    try:
        with closing(engine.run(gate.admit(sql, frozenset(TABLES)), Query(sql=sql), Interruption())) as reader:
            return answer(pa.Table.from_batches(list(reader), schema=reader.schema))
    except QueryError as error:
        return {"error": str(error).partition("\n")[0]}


def _lines(compared: Iterable[Comparison]) -> Iterator[str]:
    yield "## What differs\n"
    yield "| Construct | DataFusion | Here | Why, or what to write |\n|---|---|---|---|"
    for one in compared:
        if one.verdict != "same":
            ours = one.ours.get("error") or _shown(one.ours)
            cells = map(_code, (one.construct.text, _shown(one.theirs), ours))
            yield f"| {' | '.join(cells)} | {one.construct.reason} |"
    for theme, group in groupby(compared, lambda one: one.construct.theme):
        yield f"\n## {theme}\n"
        yield "| The same in both | Answer | Type |\n|---|---|---|"
        for one in group:
            if one.verdict == "same":
                yield f"| {_code(one.construct.text)} | {_code(_shown(one.theirs))} | {_types(one)} |"
    yield ""


def _shown(found: dict[str, Any]) -> str:
    """Return the value of an answer with one, and otherwise its rows."""
    rows = found["rows"]
    value = rows[0][0] if len(rows) == 1 and len(rows[0]) == 1 else rows
    return json.dumps(value, ensure_ascii=False)


def _types(one: Comparison) -> str:
    theirs, ours = (", ".join(found["types"]) for found in (one.theirs, one.ours))
    return f"`{theirs}`" if theirs == ours else f"`{theirs}`, here `{ours}`"


def _code(text: str) -> str:
    text = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
    mark = "``" if "`" in text else "`"
    return f"{mark}{text}{mark}".replace("|", r"\|").replace("\n", " ")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
