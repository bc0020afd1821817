"""
`apikey`: make an API key, list the keys of a configuration, or find out which of them a key is.

No runtime needs to be running: this command alone reads the YAML and the state directory, with the runtime's own code.
"""

import argparse
import getpass
import hashlib
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtimeclient.commands.base import Command, Invocation, add_list_format
from runtimeclient.errors import ClientError, UsageError
from runtimeclient.http.endpoint import has_typing_error
from runtimeclient.output.formats import write_list

if TYPE_CHECKING:
    from authkeys.principal import Principal
    from runtimeconf.fields import ScalarField
    from runtimeconf.model import KeyLimits, RuntimeConfig

#: The options of `create` alone.
_OF_CREATE = ("expires", "datasets", "rights", "requests_per_minute", "concurrent", "timeout")

_COLUMNS = ("name", "fingerprint", "expires", "expired", "datasets", "rights", "limits", "last_use")


def _call(invocation: Invocation) -> None:
    options = invocation.options
    if (options.name is not None) is not (options.action == "create"):
        raise UsageError("create needs the name of the new key; list and check take no name.")
    foreign = ("config",) if options.action == "create" else _OF_CREATE
    if given := next((name for name in foreign if getattr(options, name) is not None), None):
        raise UsageError(f"{options.action} does not take --{given.replace('_', '-')}.")
    {"create": _create, "list": _list, "check": _check}[options.action](invocation)


def _create(invocation: Invocation) -> None:
    from authkeys import key_format  # noqa: PLC0415 (every --help imports this module)
    from runtimeconf.dataset_schema import RELATION_NAME  # noqa: PLC0415
    from runtimeconf.fields import ChoiceField  # noqa: PLC0415
    from runtimeconf.named_keys import KeyNameField  # noqa: PLC0415

    options = invocation.options
    entry = [f"- name: {_converted(KeyNameField(), options.name, 'NAME must be')}"]
    key = key_format.generate()
    entry.append(f"  sha256: {hashlib.sha256(key.encode()).hexdigest()}")
    if options.expires is not None:
        entry.append(f"  expires: {_expiry(options.expires):%Y-%m-%dT%H:%M:%SZ}")
    if datasets := _words(options.datasets, "--datasets"):
        names = [_converted(RELATION_NAME, word, "Each of --datasets must be") for word in datasets]
        entry.append(f"  datasets: [{', '.join(names)}]")
    if rights := _words(options.rights, "--rights"):
        right = ChoiceField("query", "refresh")
        entry.append(f"  rights: [{', '.join(_converted(right, word, 'Each of --rights must be') for word in rights)}]")
    if limits := _limits(options):
        entry.append(f"  limits: {{{', '.join(f'{name}: {value}' for name, value in limits.items())}}}")
    # The entry first: whoever cannot read it has not been shown a key yet.
    reload = f"{invocation.prog} reload"
    head = f"Add this to runtime.auth.api-key.named_keys, and run {reload}. The key is shown only now:"
    for line in (head, *entry):
        invocation.console.message(line)
    invocation.console.write_line(key)


def _list(invocation: Invocation) -> None:
    from authkeys import last_use  # noqa: PLC0415
    from system.wallclock import utc_at  # noqa: PLC0415

    config = _configured(invocation)
    used, now = last_use.read(config.state_dir), datetime.now(UTC).timestamp()
    style = invocation.console.style(invocation.options.format)
    items: list[dict[str, Any]] = []
    for name, caller in _keys(config):
        moment = used.get(caller.fingerprint)
        datasets = None if caller.datasets is None else sorted(caller.datasets)
        limits = {field: value for field, value in asdict(caller.limits).items() if value is not None}
        item = {
            "name": name,
            "fingerprint": caller.fingerprint,
            "expires": None if caller.expires_at is None else utc_at(caller.expires_at),
            "expired": caller.expires_at is not None and caller.expires_at <= now,
            "datasets": datasets,
            "rights": sorted(caller.rights),
            "limits": limits,
            "last_use": None if moment is None else utc_at(moment),
        }
        if style.format != "json":
            item |= {"datasets": "all" if datasets is None else ",".join(datasets)}
            item |= {"rights": ",".join(sorted(caller.rights))}
            item |= {"limits": _limits_text(caller.limits)}
        if style.format == "table" and item["expired"]:
            item |= {"expires": f"{item['expires']} (expired)"}
        items.append(item)
    columns = [name for name in _COLUMNS if style.format != "table" or name != "expired"]
    write_list(columns, items, style, invocation.console.stdout)


def _check(invocation: Invocation) -> None:
    from authkeys.keys import KeySet  # noqa: PLC0415
    from system.wallclock import utc_at  # noqa: PLC0415

    console = invocation.console
    if console.stdin is None:
        raise UsageError("The key is read from standard input, which is closed.")
    text = getpass.getpass("API key: ") if console.stdin.isatty() else console.stdin.readline().rstrip("\r\n")
    if has_typing_error(text):
        raise ClientError("The key has a typing error: its checksum does not fit.")
    config = _configured(invocation)
    found = KeySet(config.auth.keys, _salt(config), config.auth.named_keys).find(text)
    name = next((name for name, caller in _keys(config) if caller == found), None)
    if found is None or name is None:
        raise ClientError("No entry of the configuration has this key.")
    if found.expires_at is not None and found.expires_at <= datetime.now(UTC).timestamp():
        raise ClientError(f"{name}, fingerprint {found.fingerprint}: expired at {utc_at(found.expires_at)}.")
    console.write_line(f"{name}, fingerprint {found.fingerprint}: is accepted.")


def _configured(invocation: Invocation) -> "RuntimeConfig":
    from runtimeconf.errors import RuntimeConfError  # noqa: PLC0415
    from runtimeconf.loader import load  # noqa: PLC0415
    from runtimeconf.state import config_path  # noqa: PLC0415

    try:
        file = invocation.options.config or config_path(invocation.environ)
        config = load(file, invocation.environ, needs_libraries=False)
    except RuntimeConfError as error:
        raise UsageError(str(error)) from error
    if not config.auth.enabled:
        raise UsageError("Authentication is off: runtime.auth.api-key.enabled is not true.")
    return config


def _keys(config: "RuntimeConfig") -> "Iterator[tuple[str, Principal]]":
    """Yield each key with its name, or its place in `keys`."""
    from authkeys.keys import KeySet  # noqa: PLC0415

    salt = _salt(config)
    for index, key in enumerate(config.auth.keys):
        yield f"keys[{index}]", KeySet([key], salt).principals()[0]
    for named in config.auth.named_keys:
        yield named.name, KeySet([], salt, [named]).principals()[0]


def _salt(config: "RuntimeConfig") -> bytes:
    """Return the salt of the state directory; before the first start there is none, and no fingerprint is in use."""
    from authkeys import salt  # noqa: PLC0415
    from authkeys.errors import AuthKeysError  # noqa: PLC0415

    try:
        return salt.load(config.state_dir) or bytes(salt.SALT_BYTES)
    except AuthKeysError as error:
        raise ClientError(str(error)) from error


def _expiry(text: str) -> datetime:
    from runtimeconf.fields import DurationField, InvalidValueError  # noqa: PLC0415
    from runtimeconf.named_keys import ExpiryField  # noqa: PLC0415

    try:
        return datetime.now(UTC) + timedelta(seconds=DurationField("1s", "36500d").parse(text))
    except InvalidValueError:
        moment: datetime = _converted(ExpiryField(), text, "--expires must be a period such as 90d,")
        if moment <= datetime.now(UTC):
            raise UsageError("--expires is in the past.") from None
        return moment


def _limits_text(limits: "KeyLimits") -> str | None:
    texts = [
        f"{limits.requests_per_minute} per minute" if limits.requests_per_minute is not None else "",
        f"{limits.concurrent} at once" if limits.concurrent is not None else "",
        f"timeout {limits.timeout_s:g}s" if limits.timeout_s is not None else "",
    ]
    return ", ".join(filter(None, texts)) or None


def _limits(options: argparse.Namespace) -> dict[str, str]:
    """Return the limits that were given, as the YAML writes them."""
    from runtimeconf.named_keys import LIMITS  # noqa: PLC0415

    given = {name: getattr(options, name) for name in LIMITS if getattr(options, name) is not None}
    for name, text in given.items():
        _converted(LIMITS[name], text, f"--{name.replace('_', '-')} must be")
    return given


def _words(text: str | None, option: str) -> list[str]:
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if text is not None and not words:  # An unset variable of a script must not widen the key.
        raise UsageError(f"{option} is empty: leave it out for the default.")
    return words


def _converted(field: "ScalarField[Any]", text: str, what: str) -> Any:
    from runtimeconf.fields import InvalidValueError  # noqa: PLC0415
    from runtimeconf.yaml_reader import Scalar  # noqa: PLC0415

    try:
        return field.convert(Scalar(1, text, is_plain=True))
    except InvalidValueError as error:
        hint = f" ({error})" if str(error) else ""
        raise UsageError(f"{what} {field.expected}{hint}.") from error


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("create", "list", "check"), help="what to do")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="of the key to create: a-z, 0-9 and -; it stands in logs"
    )
    create = parser.add_argument_group("create")
    create.add_argument("--expires", metavar="90d|DATE", help="after this time, or at the end of this day (UTC)")
    create.add_argument("--datasets", metavar="A,B", help="the datasets that the key may name (default: all)")
    create.add_argument("--rights", metavar="A,B", help="query, refresh or both (default: query)")
    create.add_argument("--requests-per-minute", metavar="N", help="a limit of the key (default: none)")
    create.add_argument("--concurrent", metavar="N", help="how many of its statements run at once (default: no limit)")
    create.add_argument(
        "--timeout", metavar="5s", help="the time limit of its statements, if it is shorter than query.timeout"
    )
    configured = parser.add_argument_group("list and check")
    configured.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the runtime YAML (default: the file named by RUNTIME_CONFIG, else runtime.yaml)",
    )
    add_list_format(parser)


_APIKEY = Command(
    name="apikey",
    summary="make an API key, list the keys, check a key",
    description=(
        "Make an API key and the entry for the YAML, which holds only its digest; list the keys of the YAML and their\n"
        "last use; or read a key from standard input and tell which entry it is. No runtime needs to be running."
    ),
    examples=(
        ("create dashboard --expires 90d --datasets flights", "print a new key, and the entry for named_keys"),
        ("create app --requests-per-minute 600 --concurrent 4 --timeout 5s", "a key with limits"),
        ("list --config runtime.yaml", "who may do what, and the last use"),
        ("check --config runtime.yaml < key.txt", "the entry of this key"),
    ),
    add_arguments=_add_arguments,
    call=_call,
    has_connection=False,
)

COMMANDS = {"apikey": _APIKEY}
