"""`login`: keep a key for a runtime, once the runtime has taken it."""

from __future__ import annotations

import argparse
import getpass
from contextlib import closing

from runtimeclient.client import Timeouts
from runtimeclient.command import ClientCommand, Invocation
from runtimeclient.connection import Connection
from runtimeclient.credentials import ENDPOINT_VARIABLE, Credential, check_api_key, find_credential
from runtimeclient.endpoint import DEFAULT_ENDPOINT, parse_endpoint
from runtimeclient.errors import NotAuthorisedError, UsageError
from runtimeclient.keyrings import has_keyring
from runtimeclient.profile_store import KeyPlace, ProfileStore
from runtimeclient.profiles import DEFAULT_PROFILE, PROFILE_VARIABLE, Profile, check_profile_name


class LoginCommand(ClientCommand):
    """Keep an endpoint and its key in a profile."""

    name = "login"
    summary = "keep the key of a runtime"
    description = (
        "Ask for the API key of a runtime, see that the runtime takes it, and keep it in\n"
        "a profile: the key in the keyring of the system, or in a file that only you can\n"
        "read, and the endpoint beside it. A key in RUNTIME_API_KEY is not looked at."
    )
    examples = (
        ("--http-endpoint https://runtime.example:8090", "the profile that applies when none is named"),
        ("--profile test --api-key-file key", "another profile, with a key from a file"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is special to `login`."""
        parser.add_argument(
            "--store",
            choices=("keyring", "file"),
            help="where to keep the key; without it the keyring if there is one, else a file",
        )

    def run(self, invocation: Invocation) -> None:
        """Ask, check, keep."""
        options, environ = invocation.options, invocation.environ
        name = options.profile if options.profile is not None else environ.get(PROFILE_VARIABLE) or DEFAULT_PROFILE
        store = ProfileStore(environ)
        before = store.find(check_profile_name(name))
        url = options.http_endpoint
        if url is None:
            url = environ.get(ENDPOINT_VARIABLE) or (before.endpoint.url if before else DEFAULT_ENDPOINT)
        profile = Profile(
            name=name,
            endpoint=parse_endpoint(url),
            tls_root_certificate_file=options.tls_root_certificate_file
            or (before.tls_root_certificate_file if before else None),
        )
        key = self._ask_key(invocation, profile)
        invocation.console.keep_from_others(key)
        self._check_key(invocation, profile, key)
        place: KeyPlace = options.store or ("keyring" if has_keyring() else "file")
        where = store.save(profile, key, place)
        output = invocation.console.output()
        output.write(f"The key of {profile.endpoint.url} is in {where}; its profile is {name}.\n")
        output.flush()

    def _ask_key(self, invocation: Invocation, profile: Profile) -> str:
        options, console = invocation.options, invocation.console
        credential = find_credential(options.api_key, options.api_key_file, {})
        if credential.warning:
            console.warn(credential.warning)
        if credential.api_key is not None:
            return credential.api_key
        if console.stdin is None or not console.stdin.isatty():
            raise UsageError("There is no terminal to ask for the key: give it with --api-key-file, - for a pipe.")
        key = getpass.getpass(f"API key of {profile.endpoint.url}: ")
        return check_api_key(key, "that was typed")

    def _check_key(self, invocation: Invocation, profile: Profile, key: str) -> None:
        """Raise what the runtime says against the key. Warns when it would have said nothing of any key."""
        options, console = invocation.options, invocation.console
        timeouts = Timeouts(connect_s=options.connect_timeout, silence_s=options.timeout)

        def connect(api_key: str | None) -> Connection:
            return Connection(profile.endpoint.url, Credential(api_key), profile.tls_root_certificate_file, timeouts)

        with closing(connect(key).open()) as client:
            client.status()
        try:
            with closing(connect(None).open()) as client:
                client.status()
        except NotAuthorisedError:
            pass
        else:
            console.warn(f"{profile.endpoint.url} asks for no key at the moment: this one was not checked.")
        if not (profile.endpoint.is_tls or profile.endpoint.is_loopback):
            console.warn(f"{profile.endpoint.url} is not https: the key travels as plain text.")


COMMAND = LoginCommand()
