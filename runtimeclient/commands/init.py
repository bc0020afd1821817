"""`init`: write a first configuration and a key for it. No runtime needs to be running."""

import hashlib
import os
import re
import unicodedata
from itertools import filterfalse
from pathlib import Path
from textwrap import indent

from runtimeclient.commands.base import Command, Invocation
from runtimeclient.errors import UsageError
from runtimeclient.files import output_errors, parse_path

_KEY_FILE = Path("api_key")

_HEAD = """\
# Written by `querykeep init`.
runtime:
  auth:
    api-key:
      enabled: true
      named_keys:
        # The key is in the file api_key; this is its digest. `querykeep apikey create NAME` makes another key.
        - name: first
          sha256: {digest}
          rights: [query, refresh]
"""

_REFRESH = """\
    acceleration:
      enabled: true
      refresh_check_interval: 10s  # a changed file is loaded again
"""

_NO_DATASET = """\
# datasets:
#   - from: file:orders.parquet
#     name: orders
"""


def _call(invocation: Invocation) -> None:
    from authkeys import key_format  # noqa: PLC0415 (every --help imports this module)
    from runtimeconf.state import DEFAULT_FILE, ENVIRONMENT_VARIABLE  # noqa: PLC0415

    config = Path(DEFAULT_FILE)
    for file in (config, _KEY_FILE):
        if os.path.lexists(file):
            raise UsageError(f"{file} exists here, and nothing is overwritten: move it away, or use another directory.")
    datasets, statement = _dataset(invocation.options.file)
    key = key_format.generate()
    _create(_KEY_FILE, f"{key}\n")
    try:
        _create(config, _HEAD.format(digest=hashlib.sha256(key.encode()).hexdigest()) + datasets)
        _check(config, invocation)
    except BaseException:
        _KEY_FILE.unlink()
        raise
    if invocation.environ.get(ENVIRONMENT_VARIABLE):
        invocation.console.warn(f"{ENVIRONMENT_VARIABLE} names another file, which serve will read: unset it.")
    if not invocation.console.is_quiet:
        invocation.console.message(f"{config} and {_KEY_FILE} are written. Start the runtime, and query it:")
    invocation.console.write_line(f"{invocation.prog} serve")
    # The key is in no argument: other users of the machine could see it there.
    invocation.console.write_line(
        f"sed 's/^/X-API-Key: /' {_KEY_FILE} | curl -H @- -d '{statement}' http://127.0.0.1:8090/v1/sql"
    )


def _dataset(text: str | None) -> tuple[str, str]:
    """Return the datasets of the YAML, and a statement that reads them."""
    if text is None:
        return _NO_DATASET, "SELECT 42 AS answer"
    import yaml  # noqa: PLC0415 (every --help imports this module)

    from runtimeconf.connectors.file_formats import COMPRESSIONS, KINDS  # noqa: PLC0415

    file = parse_path(text)
    if not file.is_file():
        raise UsageError(f"{file} is not a file.")
    endings = rf"\.(?:{'|'.join(KINDS)})(?:\.(?:{'|'.join(COMPRESSIONS)}))?"
    parts = re.fullmatch(rf"(.+){endings}", file.name, re.IGNORECASE | re.DOTALL)
    if parts is None:
        known = ", ".join(f".{known}" for known in KINDS)
        raise UsageError(f"The format of {file} cannot be told from its name: it must end in one of {known}.")
    name = _relation_name(parts[1])
    path = f"/{str(file).lstrip('/')}" if file.is_absolute() else file  # after file:, two slashes would mean a URL
    entry = [{"from": f"file:{path}", "name": name}]
    dataset = yaml.safe_dump(entry, sort_keys=False, allow_unicode=True, width=float("inf"))
    return f"datasets:\n{indent(dataset, '  ')}{_REFRESH}", f'SELECT count(*) AS n FROM "{name}"'  # noqa: S608 (an identifier)


def _relation_name(text: str) -> str:
    """Return a valid name of a dataset that resembles *text*."""
    from runtimeconf.dataset_schema import parse_relation_name  # noqa: PLC0415
    from runtimeconf.fields import InvalidValueError  # noqa: PLC0415

    letters = "".join(filterfalse(unicodedata.combining, unicodedata.normalize("NFKD", text.replace("ß", "ss"))))
    name = re.sub(r"\W+", "_", letters, flags=re.ASCII).strip("_")[:63]
    try:
        return parse_relation_name(name)
    except InvalidValueError:
        return f"data_{name}"[:63].rstrip("_")


def _create(file: Path, content: str) -> None:
    """Create *file*, readable only by its owner. Raises OutputError if it exists or cannot be written."""
    with output_errors(file):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "w", encoding="utf-8") as stream:  # noqa: PTH123 (an open descriptor)
                stream.write(content)
        except BaseException:
            file.unlink()
            raise


def _check(config: Path, invocation: Invocation) -> None:
    """Remove *config* and raise UsageError if it is not valid: the path of the data may hold what a YAML must not."""
    from runtimeconf.errors import ConfigError  # noqa: PLC0415
    from runtimeconf.loader import load  # noqa: PLC0415

    try:
        load(config, invocation.environ)
    except ConfigError as error:
        config.unlink()
        raise UsageError(f"Nothing was written, because the runtime would refuse it: {error}") from error


COMMAND = Command(
    name="init",
    summary="write a first configuration for a data file, and a key",
    description=(
        "Write runtime.yaml for a data file, and an API key into the file api_key, both into the working directory.\n"
        "Print the two lines to run next: the first starts the runtime, the second queries it."
    ),
    examples=(
        ("orders.parquet", "serve this file as the table orders"),
        ("", "without data; list it in runtime.yaml"),
    ),
    add_arguments=lambda parser: parser.add_argument(
        "file", nargs="?", metavar="FILE", help="the data: Parquet, CSV, JSON or Excel; text may end in .gz or .zst"
    ),
    call=_call,
    has_connection=False,
)
