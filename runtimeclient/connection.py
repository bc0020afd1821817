"""Which runtime a command talks to, and with which key: options, environment, profile."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from runtimeclient.client import DEFAULT_TIMEOUTS, RuntimeClient, Timeouts
from runtimeclient.credentials import (
    ENDPOINT_VARIABLE,
    KEY_VARIABLE,
    STANDARD_INPUT,
    Credential,
    find_credential,
)
from runtimeclient.endpoint import DEFAULT_ENDPOINT, parse_endpoint
from runtimeclient.errors import UsageError
from runtimeclient.profiles import PROFILE_VARIABLE, Profile, find_profile


@dataclass(frozen=True, slots=True)
class Connection:
    """Where to connect, with what."""

    endpoint: str
    credential: Credential
    tls_root_certificate_file: Path | None
    timeouts: Timeouts

    def open(self) -> RuntimeClient:
        """Make a client. Raises UsageError."""
        return RuntimeClient(
            self.endpoint,
            self.credential.api_key,
            tls_root_certificate_file=self.tls_root_certificate_file,
            timeouts=self.timeouts,
        )


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that every command has which talks to a runtime."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="the API key; for a moment other users can see it in the list of processes: a file is better",
    )
    group.add_argument(
        "--api-key-file",
        metavar="FILE",
        help=f"file that holds the API key, - for standard input; without both options {KEY_VARIABLE} of the"
        " environment is taken, else the key of the profile, else none",
    )
    group.add_argument(
        "--http-endpoint",
        metavar="URL",
        help=f"where the runtime is; without it {ENDPOINT_VARIABLE} of the environment, else the endpoint of the"
        f" profile, else {DEFAULT_ENDPOINT}",
    )
    group.add_argument(
        "--profile",
        metavar="NAME",
        help=f"take endpoint and key from this profile of the configuration file; without it {PROFILE_VARIABLE} of"
        " the environment, else the profile named default, if there is one",
    )
    group.add_argument(
        "--tls-root-certificate-file",
        metavar="FILE",
        type=Path,
        help="PEM file with the root certificates to trust instead of the usual ones (for https)",
    )
    group.add_argument(
        "--connect-timeout",
        metavar="SECONDS",
        type=seconds,
        default=DEFAULT_TIMEOUTS.connect_s,
        help="longest wait for a connection, and for the whole of any answer but that to a query (default %(default)g)",
    )
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=DEFAULT_TIMEOUTS.silence_s,
        help="longest wait until the answer to a query begins, and longest time that may pass with less than"
        " 100 bytes a second while it arrives (default %(default)g)",
    )


def resolve(options: argparse.Namespace, environ: Mapping[str, str]) -> Connection:
    """
    Choose endpoint and key: a flag wins over a file flag, that over the environment, that over the profile.

    The key of a profile goes to the endpoint of that profile only. When the endpoint comes from elsewhere, a profile
    that was asked for is refused, and one that was not does not apply.

    Raises:
        UsageError: Something that was given cannot be used.
    """
    profile = _profile(options, environ)
    endpoint = options.http_endpoint
    if endpoint is None:
        endpoint = environ.get(ENDPOINT_VARIABLE) or (profile.endpoint.url if profile else DEFAULT_ENDPOINT)
    is_elsewhere = profile is not None and parse_endpoint(endpoint).origin != profile.endpoint.origin
    if profile is not None and is_elsewhere and profile.is_named:
        raise UsageError(
            f"The profile {profile.name} is for {profile.endpoint.url}, but --http-endpoint or {ENDPOINT_VARIABLE}"
            f" names another runtime: its key is not sent there."
        )
    applies = None if is_elsewhere else profile
    tls_file = options.tls_root_certificate_file
    if tls_file is None and applies is not None:
        tls_file = applies.tls_root_certificate_file
    return Connection(
        endpoint,
        find_credential(options.api_key, options.api_key_file, environ, applies),
        tls_file,
        Timeouts(connect_s=options.connect_timeout, silence_s=options.timeout),
    )


def takes_key_from_standard_input(options: argparse.Namespace) -> bool:
    """Tell whether nothing else can be read from standard input."""
    return options.api_key is None and options.api_key_file == STANDARD_INPUT


def seconds(text: str) -> float:
    """Read a number of seconds from the command line."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be more than 0 seconds")
    return value


def _profile(options: argparse.Namespace, environ: Mapping[str, str]) -> Profile | None:
    """Find the profile, unless everything that it could say is said already."""
    has_key = options.api_key is not None or options.api_key_file is not None or environ.get(KEY_VARIABLE)
    has_endpoint = options.http_endpoint is not None or environ.get(ENDPOINT_VARIABLE)
    is_named = options.profile is not None or environ.get(PROFILE_VARIABLE)
    return None if has_key and has_endpoint and not is_named else find_profile(options.profile, environ)
