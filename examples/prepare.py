"""
Make the random API keys of the example on its first run, in files that git ignores and only their owner can read.

    python examples/prepare.py                 make the keys if there are none
    python examples/prepare.py --print-query   also print a query to paste into another terminal

Only the standard library is needed. The keys themselves are never printed.
"""

import argparse
import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

KEY_FILES = tuple(Path(__file__).resolve().parent / "secrets" / name for name in ("api_key", "dashboard_key"))

#: Works as it stands in a shell at the root of the clone, while the example runs.
QUERY = (
    'curl -H "X-API-Key: $(cat examples/secrets/api_key)"'
    " -d 'SELECT carrier, count(*) AS n FROM flights GROUP BY 1 ORDER BY 2 DESC LIMIT 3'"
    " http://127.0.0.1:8090/v1/sql"
)


def make_key(path: Path) -> None:
    """
    Write a random 256-bit key to *path* (mode 0600, directory mode 0700) unless the file exists.

    The file appears whole or not at all; of two that run at once, one makes the key and the other leaves it.

    Raises:
        OSError: The directory or the file cannot be written.
    """
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.parent.chmod(0o700)
    if path.exists():
        path.chmod(0o600)
        return
    descriptor, unfinished = tempfile.mkstemp(dir=path.parent)  # mkstemp makes it 0600
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            path.hardlink_to(unfinished)  # Unlike a rename it never replaces a key that has appeared meanwhile.
    finally:
        Path(unfinished).unlink()


def main() -> None:
    """Make the keys, and print the query when asked to."""
    parser = argparse.ArgumentParser(description="Make the API keys of the example.")
    parser.add_argument("--print-query", action="store_true", help="print a query to paste into another terminal")
    arguments = parser.parse_args()
    for file in KEY_FILES:
        make_key(file)
    if arguments.print_query:
        print(QUERY)


if __name__ == "__main__":
    main()
