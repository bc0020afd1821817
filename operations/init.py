"""`init`: write a first configuration and a key, or add data files to it. No runtime needs to be running."""

import hashlib
import os
import re
import shlex
import shutil
import sys
import unicodedata
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from itertools import filterfalse
from pathlib import Path
from textwrap import indent

import yaml
from msgspec import Struct

from authkeys import key_format
from operations.yaml_text import NotEditableError, append_items
from runtimeclient.commands.base import Invocation
from runtimeclient.connection import KEY_FILE, KEY_FILE_HINT
from runtimeclient.errors import UsageError
from runtimeclient.files import output_errors, parse_path, replace_file
from runtimeconf.dataset_schema import parse_relation_name
from runtimeconf.errors import RuntimeConfError
from runtimeconf.fields import InvalidValueError
from runtimeconf.file_formats import COMPRESSIONS, KINDS
from runtimeconf.loader import load
from runtimeconf.model import RuntimeConfig
from runtimeconf.state import DEFAULT_FILE, ENVIRONMENT_VARIABLE

_KEY_FILE = Path(KEY_FILE)

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


class _Dataset(Struct, frozen=True):
    """A data file, and the name of its dataset."""

    file: Path
    name: str

    @property
    def entry(self) -> str:
        """The item of `datasets`."""
        # Two slashes after file: would mean a URL.
        path = f"/{str(self.file).lstrip('/')}" if self.file.is_absolute() else self.file
        fields = [{"from": f"file:{path}", "name": self.name}]
        return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True, width=float("inf")) + _REFRESH

    @property
    def statement(self) -> str:
        """A statement that reads the dataset."""
        return f'SELECT count(*) AS n FROM "{self.name}"'  # noqa: S608 (an identifier)


def call(invocation: Invocation) -> None:
    """Write a configuration and a key, or add data files to the existing configuration."""
    config, files = Path(DEFAULT_FILE), [_data_file(text) for text in invocation.options.files]
    named = invocation.environ.get(ENVIRONMENT_VARIABLE)
    if named and Path(named).absolute() != config.absolute():
        invocation.console.warn(f"{ENVIRONMENT_VARIABLE} is set to another file, which serve would read: unset it.")
    if files and os.path.lexists(config):
        _add(invocation, config, files)
    else:
        _write(invocation, config, files)


def _write(invocation: Invocation, config: Path, files: Sequence[Path]) -> None:
    """Write a first configuration, and a key."""
    for file in (config, _KEY_FILE):
        if os.path.lexists(file):
            hint = " To add data files to it, name them." if file == config else ""
            raise UsageError(
                f"{file} already exists and is not overwritten: move it away, or use another directory.{hint}"
            )
    datasets = _named(files, set())
    items = "".join(dataset.entry for dataset in datasets)
    key = key_format.generate()
    _create(_KEY_FILE, f"{key}\n")
    try:
        content = _HEAD.format(digest=hashlib.sha256(key.encode()).hexdigest())
        _create(config, content + (f"datasets:\n{indent(items, '  ')}" if items else _NO_DATASET))
        _check(config, invocation)
    except BaseException:
        _KEY_FILE.unlink()
        raise
    message = _messages(invocation)
    message(f"Wrote {config} and {_KEY_FILE}. Start the runtime, and query it:")
    invocation.console.write_line(f"{_program(invocation)} serve")
    statement = datasets[0].statement if datasets else "SELECT 42 AS answer"
    invocation.console.write_line(_curl(statement, "http://127.0.0.1:8090"))
    message(f"For the client, such as {invocation.prog} sql, set the key in this shell: {KEY_FILE_HINT}")


def _add(invocation: Invocation, config: Path, files: Sequence[Path]) -> None:
    """Add datasets to a configuration. The file is replaced once the new configuration is known to be valid."""
    before = _loaded(config, config, invocation, f"{config} exists, but datasets cannot be added to it")
    known = {
        Path(dataset.location).resolve(): dataset.name for dataset in before.datasets if dataset.connector == "file"
    }
    for file in files:
        if (name := known.get(file.resolve())) is not None:
            raise UsageError(f"{file} is already a dataset in {config}: {name}.")
    names = [dataset.name for dataset in before.datasets]
    datasets = _named(files, {name.lower() for name in (*names, *(view.name for view in before.views))})
    names += [dataset.name for dataset in datasets]
    items = "".join(dataset.entry for dataset in datasets)
    after: RuntimeConfig | None = None

    def check(part: Path) -> None:
        nonlocal after
        after = _loaded(part, config, invocation, f"{config} was not changed, because the runtime would refuse it")
        if sorted(dataset.name for dataset in after.datasets) != sorted(names):
            raise NotEditableError("its other datasets would change")

    try:
        replace_file(config, append_items(config.read_bytes().decode(), "datasets", items).encode(), check)
    except (NotEditableError, UnicodeDecodeError) as error:
        reason = error if isinstance(error, NotEditableError) else "it is not UTF-8"
        invocation.console.message(items.rstrip())
        raise UsageError(f"{config} was not changed, because {reason}: add the lines above to its datasets.") from error
    assert after is not None  # noqa: S101 (for the type checker)
    message = _messages(invocation)
    message(f"Added to {config}: {', '.join(f'{dataset.name} (from {dataset.file})' for dataset in datasets)}.")
    program = _program(invocation)
    message(f"A running runtime serves it after a reload; otherwise, start it with {program} serve:")
    invocation.console.write_line(f"{program} reload")
    if _KEY_FILE.exists():
        invocation.console.write_line(_curl(datasets[0].statement, _address(after)))


def _messages(invocation: Invocation) -> Callable[[str], object]:
    return (lambda _: None) if invocation.console.is_quiet else invocation.console.message


def _program(invocation: Invocation) -> str:
    """Return the program as a shell here finds it, or its path if it is not in PATH."""
    program, found = Path(sys.argv[0]), shutil.which(invocation.prog)
    if program.name != invocation.prog or (found and program.samefile(found)):
        return invocation.prog
    return shlex.quote(min(os.path.relpath(program), str(program.absolute()), key=len))


def _curl(statement: str, url: str) -> str:
    return f"""curl -H "X-API-Key: $(cat {_KEY_FILE})" -d '{statement}' {url}/v1/sql"""


def _address(config: RuntimeConfig) -> str:
    return f"{'https' if config.tls.enabled else 'http'}://{config.http.bind.local}"


def _data_file(text: str) -> Path:
    file = parse_path(text)
    if not file.is_file():
        raise UsageError(f"{file} is not a file.")
    _stem(file)
    return file


def _stem(file: Path) -> str:
    """Return the name of a data file without its extension. Raises UsageError if the extension shows no format."""
    endings = rf"\.(?:{'|'.join(KINDS)})(?:\.(?:{'|'.join(COMPRESSIONS)}))?"
    parts = re.fullmatch(rf"(.+){endings}", file.name, re.IGNORECASE | re.DOTALL)
    if parts is None:
        known = ", ".join(f".{known}" for known in KINDS)
        raise UsageError(f"The format of {file} cannot be determined from its name: it must end in one of {known}.")
    return parts[1]


def _named(files: Sequence[Path], taken: AbstractSet[str]) -> list[_Dataset]:
    """Name the datasets of *files* with unique lower-case names that are not in *taken*."""
    datasets: list[_Dataset] = []
    used = set(taken)
    for file in files:
        if any(file.resolve() == other.file.resolve() for other in datasets):
            raise UsageError(f"{file} is given twice.")
        first = name = _relation_name(_stem(file))
        number = 1
        while name.lower() in used:
            number += 1
            name = f"{first[:58]}_{number}"
        used.add(name.lower())
        datasets.append(_Dataset(file, name))
    return datasets


def _relation_name(text: str) -> str:
    """Return a valid dataset name that resembles *text*."""
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
    """
    Remove *config* and raise UsageError if it is not valid.

    The data path may contain text that is not allowed in YAML.
    """
    try:
        _loaded(config, config, invocation, "Nothing was written, because the runtime would refuse it")
    except UsageError:
        config.unlink()
        raise


def _loaded(file: Path, shown: Path, invocation: Invocation, problem: str) -> RuntimeConfig:
    """Load a configuration. Errors name it *shown*. Raises UsageError, which begins with *problem*."""
    try:
        return load(file, invocation.environ, needs_libraries=False)
    except RuntimeConfError as error:
        raise UsageError(f"{problem}: {str(error).replace(str(file.absolute()), str(shown.absolute()))}") from error
