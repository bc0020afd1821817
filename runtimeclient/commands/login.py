"""`login`: check the key of a runtime and store it."""

from __future__ import annotations

import argparse
import getpass
from contextlib import closing

from runtimeclient.client import Timeouts
from runtimeclient.commands.base import ClientCommand, Invocation
from runtimeclient.errors import NotAuthorisedError, UsageError
from runtimeclient.http.api_key import check_api_key
from runtimeclient.http.endpoint import DEFAULT_ENDPOINT, parse_endpoint
from runtimeclient.profiles.config import DEFAULT_PROFILE, PROFILE_VARIABLE, Profile, check_profile_name
from runtimeclient.profiles.connection import Connection
from runtimeclient.profiles.key_lookup import ENDPOINT_VARIABLE, Credential, find_credential
from runtimeclient.profiles.keyrings import has_keyring
from runtimeclient.profiles.profile_store import KeyStore, ProfileStore


class LoginCommand(ClientCommand):
    """Store an endpoint and its key in a profile."""

    name = "login"
    summary = "store the key of a runtime"
    description = (
        "Ask for the API key of a runtime, check it with the runtime, and store endpoint\n"
        "and key in a profile. The key goes to the system keyring, or to a file that only\n"
        "you can read. RUNTIME_API_KEY is ignored."
    )
    examples = (
        ("--http-endpoint https://runtime.example:8090", "the default profile"),
        ("--profile test --api-key-file key", "another profile, with a key from a file"),
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add `--store`."""
        parser.add_argument(
            "--store",
            choices=("keyring", "file"),
            help="where to store the key (default: the keyring if there is one, else a file)",
        )

    def run(self, invocation: Invocation) -> None:
        """Ask for the key, check it and store it."""
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
        invocation.console.hide_key(key)
        self._check_key(invocation, profile, key)
        key_store: KeyStore = options.store or ("keyring" if has_keyring() else "file")
        where = store.save(profile, key, key_store)
        invocation.console.write_line(f"The key of {profile.endpoint.url} is in {where}; its profile is {name}.")

    def _ask_key(self, invocation: Invocation, profile: Profile) -> str:
        options, console = invocation.options, invocation.console
        credential = find_credential(options.api_key, options.api_key_file, {})
        if credential.warning:
            console.warn(credential.warning)
        if credential.api_key is not None:
            return credential.api_key
        if console.stdin is None or not console.stdin.isatty():
            raise UsageError("The key cannot be typed without a terminal: give it with --api-key-file, - for a pipe.")
        key = getpass.getpass(f"API key of {profile.endpoint.url}: ")
        return check_api_key(key, "that was typed")

    def _check_key(self, invocation: Invocation, profile: Profile, key: str) -> None:
        """Raise an error if the runtime refuses the key. Warn if it would accept any key."""
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
            console.warn(f"{profile.endpoint.url} does not require a key at present: this one was not checked.")
        if not (profile.endpoint.is_tls or profile.endpoint.is_loopback):
            console.warn(f"{profile.endpoint.url} does not use https: the key is sent unencrypted.")


COMMAND = LoginCommand()
