"""
What EXPLAIN ANALYZE may show.

Figures of the whole instance are left out, and so are the bytes read and written, because hidden columns decide which
blocks of a file the visible ones are in.
"""

import re
from typing import Final

import pyarrow as pa

#: Limits what DuckDB measures. Its texts and pages show the bytes all the same.
METRICS: Final = "SET tracked_metrics = ['operator.*', 'optimizer.*', 'p*.*', 'query.*time', 'query.sql']"

#: The box at the beginning of a text.
_SUMMARY: Final = re.compile(r"\A╭─ Summary ─+╮\n│ Total Time: +([^│\n]*?) *│\n(?:│[^│\n]*│\n)+╰─+╯\n")

#: The figures in a page, which come before all that the author of a statement can choose.
_IN_PAGE: Final = re.compile(r'(\A\s*<!DOCTYPE.*?"bytes_read":)\d+(,"bytes_written":)\d+', re.DOTALL | re.IGNORECASE)


def without_bytes(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Remove the bytes read and written from the rows of an EXPLAIN."""
    field = batch.schema.field(1)
    texts = [_IN_PAGE.sub(r"\g<1>0\g<2>0", _SUMMARY.sub(_summary, text)) for text in batch.column(1).to_pylist()]
    return batch.set_column(1, field, pa.array(texts, field.type))


def _summary(found: re.Match[str]) -> str:
    """Return the box that DuckDB draws if nothing was read."""
    line = f" Total Time: {found[1]} "
    return f"╭{'─ Summary '.ljust(len(line), '─')}╮\n│{line}│\n╰{'─' * len(line)}╯\n"
