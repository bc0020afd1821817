"""`manage.py apikey`: make an API key, list the keys of the YAML, or find out which one a text is."""

import getpass
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

import runtimeconf.state
from authkeys import key_format, last_use, salt
from authkeys.keys import KeySet
from authkeys.principal import Principal
from runtime_site.management.part import add_config_option, use_config
from runtimeconf.errors import RuntimeConfError
from runtimeconf.fields import ChoiceField, DurationField, InvalidValueError, ScalarField
from runtimeconf.model import RuntimeConfig
from runtimeconf.named_keys import ExpiryField, KeyNameField
from runtimeconf.yaml_reader import Scalar
from system.wallclock import utc_at

_PERIOD = DurationField("1s", "36500d")
_RIGHT = ChoiceField("query", "refresh")
_COLUMNS = ("name", "fingerprint", "expires", "datasets", "rights", "last use")


@dataclass(frozen=True, slots=True)
class _Item:
    """A key of the YAML: its name, or its place in `keys`, and what it may do."""

    name: str
    principal: Principal


class Command(BaseCommand):
    """Work with API keys. No server needs to run."""

    help = "Makes an API key, lists the keys of the YAML, or tells which of them a key is."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the three actions."""
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="print a new key once, and the entry for named_keys of the YAML")
        create.add_argument("name", help="a-z, 0-9 and -, at most 40 characters; it stands in logs")
        create.add_argument("--expires", metavar="90d|DATE", help="after this time, or at the end of this day (UTC)")
        create.add_argument("--datasets", metavar="A,B", help="the datasets that it may name (default: all)")
        create.add_argument("--rights", metavar="A,B", help="query, refresh or both (default: query)")
        add_config_option(actions.add_parser("list", help="list the keys of the YAML and their last use"))
        check = actions.add_parser("check", help="read a key from standard input and tell which one it is")
        add_config_option(check)

    def handle(self, *_: Any, **options: Any) -> None:
        """Run the action."""
        match options["action"]:
            case "create":
                self._create(options)
            case "list":
                self._list(_configured(options))
            case "check":
                self._check(_configured(options))

    def _create(self, options: dict[str, Any]) -> None:
        entry = [f"- name: {_converted(KeyNameField(), options['name'], 'The name')}"]
        key = key_format.generate()
        entry.append(f"  sha256: {hashlib.sha256(key.encode()).hexdigest()}")
        if options["expires"]:
            entry.append(f"  expires: {_expiry(options['expires']):%Y-%m-%dT%H:%M:%SZ}")
        if datasets := _words(options["datasets"]):
            entry.append(f"  datasets: [{', '.join(datasets)}]")
        if rights := _words(options["rights"]):
            checked = [_converted(_RIGHT, right, "Each of --rights") for right in rights]
            entry.append(f"  rights: [{', '.join(checked)}]")
        self.stdout.write(key)
        self.stderr.write("The key is shown this once. Add this to runtime.auth.api-key.named_keys and restart:\n")
        self.stderr.write("\n".join(entry))

    def _list(self, config: RuntimeConfig) -> None:
        used = last_use.read(config.state_dir)
        rows = [_COLUMNS]
        for item in _items(config):
            caller = item.principal
            moment = used.get(caller.fingerprint)
            rows.append(
                (
                    item.name,
                    caller.fingerprint,
                    "never" if caller.expires_at is None else utc_at(caller.expires_at),
                    "all" if caller.datasets is None else ",".join(sorted(caller.datasets)),
                    ",".join(sorted(caller.rights)),
                    "never" if moment is None else utc_at(moment),
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            self.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())

    def _check(self, config: RuntimeConfig) -> None:
        text = getpass.getpass("Key: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\r\n")
        if key_format.has_typing_error(text):
            raise CommandError("There is a typing error in this key: its checksum does not fit.")
        keys = KeySet(config.auth.keys, _salt(config), config.auth.named_keys)
        caller = keys.find(text)
        item = next((one for one in _items(config) if one.principal == caller), None)
        if caller is None or item is None:
            raise CommandError("No entry of the YAML has this key.")
        state = "is accepted"
        if caller.expires_at is not None and caller.expires_at <= datetime.now(UTC).timestamp():
            state = f"expired at {utc_at(caller.expires_at)}"
        self.stdout.write(f"{item.name}, fingerprint {caller.fingerprint}: {state}.")
        if state != "is accepted":
            sys.exit(1)


def _configured(options: dict[str, Any]) -> RuntimeConfig:
    try:
        use_config(options["config"])
        config = runtimeconf.state.get_config()
    except RuntimeConfError as error:
        raise CommandError(str(error)) from error
    if not config.auth.enabled:
        raise CommandError("Authentication is off: runtime.auth.api-key.enabled is not true.")
    return config


def _items(config: RuntimeConfig) -> Iterator[_Item]:
    """Yield the keys in the order in which the first of two equal ones counts."""
    named = {key.name: key for key in config.auth.named_keys}
    keys: list[tuple[str, KeySet]] = [
        (f"keys[{index}]", KeySet([key], _salt(config))) for index, key in enumerate(config.auth.keys)
    ]
    keys += [(name, KeySet([], _salt(config), [key])) for name, key in named.items()]
    for name, single in keys:
        for principal in single.principals():
            yield _Item(name, principal)


def _salt(config: RuntimeConfig) -> bytes:
    """Return the salt of the state directory; before the first start there is none, and no fingerprint is in use."""
    return salt.load(config.state_dir) or bytes(salt.SALT_BYTES)


def _expiry(text: str) -> datetime:
    try:
        return datetime.now(UTC) + timedelta(seconds=_PERIOD.parse(text))
    except InvalidValueError:
        moment: datetime = _converted(ExpiryField(), text, "--expires, unless it is a period such as 90d,")
        return moment


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _converted(field: ScalarField[Any], text: str, what: str) -> Any:
    try:
        return field.convert(Scalar(1, text, is_plain=True))
    except InvalidValueError as error:
        hint = f" ({error})" if str(error) else ""
        raise CommandError(f"{what} must be {field.expected}{hint}.") from error
