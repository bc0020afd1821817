"""The YAML: every fault at once, its secrets, its SQL and its keys."""

import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from datasources.refresh.dry_run import dry_run
from queryengine.manifest import Column
from runtime_site.doctor.findings import Finding, error, note, ok, warning
from runtimeconf.errors import ConfigError
from runtimeconf.loader import load, state_dir_of
from runtimeconf.model import AuthConfig, RuntimeConfig
from runtimeconf.references import holds_reference
from runtimeconf.schema import paths_by_name
from runtimeconf.yaml_reader import Mapping as YamlMapping
from runtimeconf.yaml_reader import Node, Scalar, read_document
from runtimeconf.yaml_reader import Sequence as YamlSequence
from supervisor import startup
from system.wallclock import utc_at

_FIX_YAML = "Correct the YAML; docs/configuration.md describes each field."
_FIX_FILE = "Name the file by --config or RUNTIME_CONFIG, and run this command as the runtime's user."
_FIX_WARNING = "docs/configuration.md, Warnings, says why, and how to avoid it."
_FIX_EXPIRY = "Rotate the key: docs/how-to/rotate-a-key.md; `querykeep reload` applies the change."
_FIX_KEYS = "Make a key with `querykeep apikey create`, then `querykeep reload`."


@dataclass(slots=True)
class Configuration:
    """
    What could be read of the YAML *file*: the whole configuration, or at least its state directory.

    `document` is the source text as a tree, for the support bundle; None if it is no YAML.
    """

    file: Path
    config: RuntimeConfig | None = None
    state_dir: Path | None = None
    document: YamlMapping | None = None

    def read(self) -> Iterator[Finding]:
        """Read the file and yield what is wrong with it."""
        about = "configuration"
        self.document = read_document(self.file.absolute(), frozenset(paths_by_name())).root
        try:
            self.state_dir = state_dir_of(self.file)
            self.config = load(self.file, os.environ)
        except ConfigError as exc:
            for fault in exc.faults:
                yield error(about, str(fault), _FIX_YAML if fault.line else _FIX_FILE)
            return
        self.state_dir = self.config.state_dir
        yield ok(about, f"{self.config.file} has no fault: {_counted(len(self.config.datasets), 'dataset')}.")
        for sentence in self.config.warnings:
            yield warning(about, sentence, _FIX_EXPIRY if ".expires: " in sentence else _FIX_WARNING)
        yield from _secrets(self.document, is_auth_on=self.config.auth.enabled)
        yield from _keys(self.config.auth)

    def check_sql(self) -> Iterator[Finding]:
        """Yield the statements of the YAML that the runtime refuses."""
        if self.config is None:
            return
        try:
            self.config = startup.with_checked_statements(self.config)
        except ConfigError as exc:
            for fault in exc.faults:
                shared = f"Line {fault.line}: {fault.yaml_path}: The statement is refused."
                yield error(
                    "sql", str(fault), "Correct the statement; docs/sql.md lists what is allowed.", shared=shared
                )
        else:
            yield ok("sql", "The statements of the YAML are allowed.")

    def check_views(self, known: Mapping[str, tuple[Column, ...]]) -> Iterator[Finding]:
        """Yield the views, indexes and the like that do not fit the columns of the datasets, as far as *known*."""
        if self.config is None:
            return
        found = dry_run(self.config, known)
        for fault in found.errors:
            shared = f"Line {fault.line}: {fault.yaml_path}: It does not fit the columns of the datasets."
            yield error("sql", str(fault), "Correct the statement, or the columns of the dataset.", shared=shared)
        if not found.errors and self.config.views:
            yield ok("sql", "The views fit the columns of the datasets, as far as these are known.")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _secrets(document: YamlMapping | None, *, is_auth_on: bool) -> Iterator[Finding]:
    # Each that does not resolve is a fault; those of keys are not looked up while authentication is off.
    unread = {"secrets"} if is_auth_on else {"secrets", "auth"}
    texts = () if document is None else _texts(document, unread)
    if references := sum(map(holds_reference, texts)):
        found = "The secret reference resolves" if references == 1 else f"All {references:,} secret references resolve"
        yield ok("secrets", f"{found}.")


def _keys(auth: AuthConfig) -> Iterator[Finding]:
    about = "keys"
    if not auth.enabled:
        yield note(about, "Authentication is off: anyone who can connect may read all data.", _FIX_KEYS)
        return
    now = datetime.now(UTC)
    working = [key for key in auth.named_keys if key.expires_at is None or key.expires_at > now]
    if not (auth.keys or working):
        yield error(about, "No key works.", _FIX_KEYS)
        return
    text = f"{len(auth.keys) + len(working)} of {_counted(len(auth.keys) + len(auth.named_keys), 'key')} can be used"
    ends = [key.expires_at for key in working if key.expires_at is not None]
    yield ok(about, f"{text}{f'; the next expires at {utc_at(min(ends).timestamp())}' if ends else ''}.")


def _texts(node: Node, unread: Collection[str]) -> Iterator[str]:
    """Yield all values of *node*, except those below the fields *unread*."""
    if isinstance(node, Scalar):
        yield node.text
    elif isinstance(node, YamlSequence):
        for item in node.items:
            yield from _texts(item, unread)
    else:
        for entry in node.entries:
            if entry.name not in unread:
                yield from _texts(entry.value, unread)
