"""
`apikey`: create an API key, list a configuration's keys, or identify a given key among them.

It reads the configuration file and the state directory with the runtime's own code.
"""

import argparse
import hashlib
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import asdict

from authkeys import key_format, last_use, salt
from authkeys.errors import AuthKeysError
from authkeys.keys import KeySet
from authkeys.principal import Principal
from runtimeclient.commands.base import Invocation
from runtimeclient.connection import ask_key
from runtimeclient.errors import ClientError, UsageError
from runtimeclient.http.api_keys import has_typing_error
from runtimeclient.output.formats import write_list
from runtimeconf.dataset_schema import RELATION_NAME
from runtimeconf.errors import RuntimeConfError
from runtimeconf.fields import ChoiceField, DurationField, InvalidValueError, ScalarField
from runtimeconf.loader import load
from runtimeconf.model import DatasetRule, KeyLimits, RuntimeConfig
from runtimeconf.named_keys import EXPRESSION, LIMITS, ExpiryField, KeyNameField
from runtimeconf.state import config_path
from runtimeconf.yaml_nodes import Scalar
from system.wallclock import utc_at

#: The options that only `create` accepts.
_OF_CREATE = ("expires", "datasets", "rows", "rights", "requests_per_minute", "concurrent", "timeout")

_COLUMNS = ("name", "fingerprint", "expires", "expired", "datasets", "rules", "rights", "limits", "last_use")


def call(invocation: Invocation) -> None:
    """Create a key, list the keys, or check one."""
    options = invocation.options
    if (options.name is not None) is not (options.action == "create"):
        raise UsageError("create needs the name of the new key; list and check take no name.")
    foreign = ("config",) if options.action == "create" else _OF_CREATE
    if given := next((name for name in foreign if getattr(options, name) is not None), None):
        raise UsageError(f"{options.action} does not accept --{given.replace('_', '-')}.")
    {"create": _create, "list": _list, "check": _check}[options.action](invocation)


def _create(invocation: Invocation) -> None:
    options = invocation.options
    entry = [f"- name: {_converted(KeyNameField(), options.name, 'NAME must be')}"]
    key = key_format.generate()
    entry.append(f"  sha256: {hashlib.sha256(key.encode()).hexdigest()}")
    if options.expires is not None:
        entry.append(f"  expires: {_expiry(options.expires):%Y-%m-%dT%H:%M:%SZ}")
    filters: dict[str, str] = {}
    for name, sql in map(_row_filter, options.rows or ()):
        if name in filters:  # Keeping only one of them would show more rows than either allows.
            raise UsageError(f"--rows has a filter for {name} twice: join the conditions with AND.")
        filters[name] = sql
    datasets = _words(options.datasets, "--datasets")
    names = [_converted(RELATION_NAME, word, "Each of --datasets must be") for word in datasets]
    if filters:
        entry.append("  datasets:")
        entry += [f"    - {name}" for name in names if name.lower() not in filters]
        for name, sql in filters.items():  # JSON is valid YAML.
            entry += [f"    - name: {name}", f"      row_filter: {json.dumps(sql, ensure_ascii=False)}"]
    elif names:
        entry.append(f"  datasets: [{', '.join(names)}]")
    if rights := _words(options.rights, "--rights"):
        right = ChoiceField("query", "refresh")
        entry.append(f"  rights: [{', '.join(_converted(right, word, 'Each of --rights must be') for word in rights)}]")
    if limits := _limits(options):
        entry.append(f"  limits: {{{', '.join(f'{name}: {value}' for name, value in limits.items())}}}")
    # Print the entry first, so that no key has been shown if the output fails.
    reload = f"{invocation.prog} reload"
    head = f"Add this to runtime.auth.api-key.named_keys, and run {reload}. The key is shown only once:"
    for line in (head, *entry):
        invocation.console.message(line)
    invocation.console.write_line(key)


def _list(invocation: Invocation) -> None:
    config = _configured(invocation)
    used, now = last_use.read(config.state_dir), datetime.now(UTC).timestamp()
    style = invocation.console.style(invocation.options.format)
    items: list[dict[str, Any]] = []
    for name, caller in _keys(config):
        moment = used.get(caller.fingerprint)
        datasets = None if caller.scope is None else sorted(caller.scope.relations)
        rules = {rule.dataset: _rule(rule) for rule in caller.rules}
        limits = {field: value for field, value in asdict(caller.limits).items() if value is not None}
        item = {
            "name": name,
            "fingerprint": caller.fingerprint,
            "expires": None if caller.expires_at is None else utc_at(caller.expires_at),
            "expired": caller.expires_at is not None and caller.expires_at <= now,
            "datasets": datasets,
            "rules": rules,
            "rights": sorted(caller.rights),
            "limits": limits,
            "last_use": None if moment is None else utc_at(moment),
        }
        if style.format != "json":
            item |= {"datasets": "all" if datasets is None else ",".join(datasets)}
            item |= {"rules": "; ".join(f"{name}: {_rule_text(rule)}" for name, rule in rules.items()) or None}
            item |= {"rights": ",".join(sorted(caller.rights))}
            item |= {"limits": _limits_text(caller.limits)}
        if style.format == "table" and item["expired"]:
            item |= {"expires": f"{item['expires']} (expired)"}
        items.append(item)
    columns = [name for name in _COLUMNS if style.format != "table" or name != "expired"]
    write_list(columns, items, style, invocation.console.stdout)


def _check(invocation: Invocation) -> None:
    console = invocation.console
    if console.stdin is None:
        raise UsageError("The key must be on standard input, which is closed.")
    text = ask_key("API key: ") if console.stdin.isatty() else console.stdin.readline().rstrip("\r\n")
    if has_typing_error(text):
        raise ClientError("The key has a typo: its checksum does not match.")
    config = _configured(invocation)
    found = KeySet(config.auth.keys, _salt(config), config.auth.named_keys).find(text)
    name = next((name for name, caller in _keys(config) if caller == found), None)
    if found is None or name is None:
        raise ClientError("No entry in the configuration has this key.")
    if found.expires_at is not None and found.expires_at <= datetime.now(UTC).timestamp():
        raise ClientError(f"{name}, fingerprint {found.fingerprint}: expired at {utc_at(found.expires_at)}.")
    console.write_line(f"{name}, fingerprint {found.fingerprint}: is accepted.")


def _configured(invocation: Invocation) -> RuntimeConfig:
    try:
        file = invocation.options.config or config_path(invocation.environ)
        config = load(file, invocation.environ, needs_libraries=False)
    except RuntimeConfError as error:
        raise UsageError(str(error)) from error
    if not config.auth.enabled:
        raise UsageError("Authentication is off: runtime.auth.api-key.enabled is not true.")
    return config


def _keys(config: RuntimeConfig) -> Iterator[tuple[str, Principal]]:
    """Yield each key with its name or its position in `keys`."""
    salt = _salt(config)
    for index, key in enumerate(config.auth.keys):
        yield f"keys[{index}]", KeySet([key], salt).principals()[0]
    for named in config.auth.named_keys:
        yield named.name, KeySet([], salt, [named]).principals()[0]


def _salt(config: RuntimeConfig) -> bytes:
    """Return the salt in the state directory. Before the first start there is none, and no fingerprint is in use."""
    try:
        return salt.load(config.state_dir) or bytes(salt.SALT_BYTES)
    except AuthKeysError as error:
        raise ClientError(str(error)) from error


def _expiry(text: str) -> datetime:
    try:
        return datetime.now(UTC) + timedelta(seconds=DurationField("1s", "36500d").parse(text))
    except InvalidValueError:
        moment: datetime = _converted(ExpiryField(), text, "--expires must be a period such as 90d,")
        if moment <= datetime.now(UTC):
            raise UsageError("--expires is in the past.") from None
        return moment


def _limits_text(limits: KeyLimits) -> str | None:
    texts = [
        f"{limits.requests_per_minute} per minute" if limits.requests_per_minute is not None else "",
        f"{limits.concurrent} at once" if limits.concurrent is not None else "",
        f"timeout {limits.timeout_s:g}s" if limits.timeout_s is not None else "",
    ]
    return ", ".join(filter(None, texts)) or None


def _limits(options: argparse.Namespace) -> dict[str, str]:
    """Return the given limits in YAML format."""
    given = {name: getattr(options, name) for name in LIMITS if getattr(options, name) is not None}
    for name, text in given.items():
        _converted(LIMITS[name], text, f"--{name.replace('_', '-')} must be")
    return given


def _row_filter(text: str) -> tuple[str, str]:
    """Return the dataset, in lower case, and the SQL of one `--rows`."""
    name, equals, sql = text.partition("=")
    if not equals or not sql.strip():
        raise UsageError("--rows must be DATASET=SQL, where the SQL is true for the rows that the key can see.")
    name = _converted(RELATION_NAME, name.strip(), "The dataset of --rows must be")
    return name.lower(), _converted(EXPRESSION, sql.strip(), "The SQL of --rows must be")


def _rule(rule: DatasetRule) -> dict[str, Any]:
    """Return the settings of *rule* under their YAML names."""
    said = {"row_filter": rule.row_filter, "columns": rule.columns and list(rule.columns), "masks": dict(rule.masks)}
    return {name: value for name, value in said.items() if value}


def _rule_text(rule: dict[str, Any]) -> str:
    texts = [
        f"rows {rule['row_filter']}" if "row_filter" in rule else "",
        f"columns {','.join(rule['columns'])}" if "columns" in rule else "",
        f"masks {','.join(rule['masks'])}" if "masks" in rule else "",
    ]
    return ", ".join(filter(None, texts))


def _words(text: str | None, option: str) -> list[str]:
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if text is not None and not words:  # An unset variable in a script must not widen the key's permissions.
        raise UsageError(f"{option} is empty: omit it to use the default.")
    return words


def _converted(field: ScalarField[Any], text: str, what: str) -> Any:
    try:
        return field.convert(Scalar(1, text, is_plain=True))
    except InvalidValueError as error:
        hint = f" ({error})" if str(error) else ""
        raise UsageError(f"{what} {field.expected}{hint}.") from error
