"""`login`: check the key of a runtime and store it."""

import getpass
from contextlib import suppress

from runtimeclient.client import RuntimeClient
from runtimeclient.commands.base import Command, Invocation
from runtimeclient.errors import NotAuthorisedError, UsageError
from runtimeclient.http.api_key import check_api_key
from runtimeclient.http.endpoint import DEFAULT_ENDPOINT, parse_endpoint
from runtimeclient.profiles.config import Profile
from runtimeclient.profiles.connection import timeouts
from runtimeclient.profiles.key_lookup import ENDPOINT_VARIABLE, find_credential
from runtimeclient.profiles.keyrings import has_keyring
from runtimeclient.profiles.profile_store import ProfileStore, profile_name


def _call(invocation: Invocation) -> None:
    options, environ, console = invocation.options, invocation.environ, invocation.console
    name = profile_name(options.profile, environ)
    store = ProfileStore(environ)
    before = store.find(name)
    url = options.http_endpoint
    if url is None:
        url = environ.get(ENDPOINT_VARIABLE) or (before.endpoint.url if before else DEFAULT_ENDPOINT)
    roots = options.tls_root_certificate_file or (before.tls_root_certificate_file if before else None)
    profile = Profile(name=name, endpoint=parse_endpoint(url), tls_root_certificate_file=roots)
    key = _ask_key(invocation, profile)
    console.api_key = key
    _check_key(invocation, profile, key)
    where = store.save(profile, key, options.store or ("keyring" if has_keyring() else "file"))
    console.write_line(f"The key of {profile.endpoint.url} is in {where}; its profile is {name}.")


def _ask_key(invocation: Invocation, profile: Profile) -> str:
    options, console = invocation.options, invocation.console
    key, warning = find_credential(options.api_key, options.api_key_file, {})
    if warning:
        console.warn(warning)
    if key is not None:
        return key
    if console.stdin is None or not console.stdin.isatty():
        raise UsageError("The key cannot be typed without a terminal: give it with --api-key-file, - for a pipe.")
    return check_api_key(getpass.getpass(f"API key of {profile.endpoint.url}: "), "that was typed")


def _check_key(invocation: Invocation, profile: Profile, key: str) -> None:
    """Raise an error if the runtime refuses the key. Warn if it would accept any key."""
    endpoint, console, limits = profile.endpoint, invocation.console, timeouts(invocation.options)
    roots = profile.tls_root_certificate_file
    with RuntimeClient(endpoint.url, key, tls_root_certificate_file=roots, timeouts=limits) as client:
        client.status()
    anonymous = RuntimeClient(endpoint.url, tls_root_certificate_file=roots, timeouts=limits)
    with suppress(NotAuthorisedError), anonymous:
        anonymous.status()
        console.warn(f"{endpoint.url} does not require a key at present: this one was not checked.")
    if not (endpoint.is_tls or endpoint.is_loopback):
        console.warn(f"{endpoint.url} does not use https: the key is sent unencrypted.")


COMMAND = Command(
    name="login",
    summary="store the key of a runtime",
    description=(
        "Ask for the API key of a runtime, check it with the runtime, and store endpoint\n"
        "and key in a profile. The key goes to the system keyring, or to a file that only\n"
        "you can read. RUNTIME_API_KEY is ignored."
    ),
    examples=(
        ("--http-endpoint https://runtime.example:8090", "the default profile"),
        ("--profile test --api-key-file key", "another profile, with a key from a file"),
    ),
    add_arguments=lambda parser: parser.add_argument(
        "--store",
        choices=("keyring", "file"),
        help="where to store the key (default: the keyring if there is one, else a file)",
    ),
    call=_call,
)
