"""Read the statements of a script."""

from collections.abc import Iterator

from runtimeclient.errors import UsageError
from runtimeclient.sql.statements import Statement, StatementSplitter

#: The name of a file that means standard input.
STANDARD_INPUT = "-"


def read_statements(file: str | None) -> Iterator[Statement]:
    """
    Yield the statements of a file (`-` or None is standard input), each as soon as it is complete.

    Raises:
        UsageError: The file cannot be read, or is not UTF-8.
    """
    path: int | str = 0 if file is None or file == STANDARD_INPUT else file
    name, source = ("Standard input", "standard input") if path == 0 else (f"The file {path}", str(path))
    splitter = StatementSplitter()
    try:
        # Keep line breaks unchanged: they may be part of a literal.
        with open(path, encoding="utf-8-sig", newline="", closefd=path != 0) as lines:
            for line in lines:
                yield from (statement._replace(source=source) for statement in splitter.feed(line))
    except UnicodeDecodeError as exc:
        raise UsageError(f"{name} is not UTF-8 text.") from exc
    except OSError as exc:
        raise UsageError(f"{name} cannot be read: {exc.strerror}.") from exc
    yield from (statement._replace(source=source) for statement in splitter.finish())
