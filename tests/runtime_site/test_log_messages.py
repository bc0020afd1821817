"""`docs/internals/log-lines.md` has every line that the product may log, with its fields, and no other."""

from tests.runtime_site.logger_calls import lines
from tests.system.harness import REPOSITORY

PAGE = REPOSITORY / "docs" / "internals" / "log-lines.md"


def test_every_line_has_its_row_and_every_row_its_line() -> None:
    table = PAGE.read_text().partition("| Logger | Level | Message | Fields |\n|---|---|---|---|\n")[2]
    rows, logged = table.splitlines(), sorted(set(lines()))

    missing = [line.row for line in logged if line.row not in rows]
    assert not missing, "\n".join(["docs/internals/log-lines.md lacks the rows:", *missing])
    stale = set(rows) - {line.row for line in logged}
    assert not stale, "\n".join(["docs/internals/log-lines.md has rows that nothing logs:", *sorted(stale)])
