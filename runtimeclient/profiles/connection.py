"""The runtime that a command talks to, and its key: options, environment, profile."""

import argparse
import math
from collections.abc import Mapping
from pathlib import Path

from runtimeclient.client import DEFAULT_TIMEOUTS, RuntimeClient, Timeouts
from runtimeclient.errors import UsageError
from runtimeclient.http.endpoint import DEFAULT_ENDPOINT, parse_endpoint
from runtimeclient.profiles.config import PROFILE_VARIABLE, Profile, find_profile
from runtimeclient.profiles.key_lookup import ENDPOINT_VARIABLE, KEY_VARIABLE, find_credential


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that talks to a runtime."""
    group = parser.add_argument_group("connection")
    group.add_argument(
        "--api-key",
        metavar="KEY",
        help="the API key; other users can briefly see it in the process list, so prefer a file",
    )
    group.add_argument(
        "--api-key-file",
        metavar="FILE",
        help=f"file with the API key, - for standard input (default: {KEY_VARIABLE} from the environment, else the key"
        " of the profile, else none)",
    )
    group.add_argument(
        "--http-endpoint",
        metavar="URL",
        help=f"URL of the runtime (default: {ENDPOINT_VARIABLE} from the environment, else the endpoint of the"
        f" profile, else {DEFAULT_ENDPOINT})",
    )
    group.add_argument(
        "--profile",
        metavar="NAME",
        help=f"take endpoint and key from this profile of the configuration file (default: {PROFILE_VARIABLE} from the"
        " environment, else the profile named default if it exists)",
    )
    group.add_argument(
        "--tls-root-certificate-file",
        metavar="FILE",
        type=Path,
        help="PEM file with the root certificates to trust instead of the default ones (for https)",
    )
    group.add_argument(
        "--connect-timeout",
        metavar="SECONDS",
        type=seconds,
        default=DEFAULT_TIMEOUTS.connect_s,
        help="time limit to connect, and for the whole response to any request except a query (default %(default)g)",
    )
    group.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=seconds,
        default=DEFAULT_TIMEOUTS.silence_s,
        help="time limit until the response to a query begins, and how long it may then stay below 100 bytes per second"
        " (default %(default)g)",
    )


def connect(options: argparse.Namespace, environ: Mapping[str, str]) -> tuple[RuntimeClient, str | None]:
    """
    Create a client, and return it with a warning about the source of its key if there is one.

    An option wins over the environment, and the environment over the profile. The key of a profile is only sent to the
    endpoint of that profile. If the endpoint comes from elsewhere, a named profile is an error, and the default profile
    is ignored.

    Raises:
        UsageError: An option, a variable or the profile cannot be used.
    """
    profile = _profile(options, environ)
    endpoint = options.http_endpoint
    if endpoint is None:
        endpoint = environ.get(ENDPOINT_VARIABLE) or (profile.endpoint.url if profile else DEFAULT_ENDPOINT)
    if profile is not None and parse_endpoint(endpoint).origin != profile.endpoint.origin:
        if profile.is_named:
            raise UsageError(
                f"The profile {profile.name} is for {profile.endpoint.url}, but --http-endpoint or {ENDPOINT_VARIABLE}"
                f" names another runtime: the profile's key is not sent there."
            )
        profile = None
    roots = options.tls_root_certificate_file or (profile.tls_root_certificate_file if profile else None)
    key, warning = find_credential(options.api_key, options.api_key_file, environ, profile)
    return RuntimeClient(endpoint, key, tls_root_certificate_file=roots, timeouts=timeouts(options)), warning


def timeouts(options: argparse.Namespace) -> Timeouts:
    """Return the time limits that the connection options set."""
    return Timeouts(connect_s=options.connect_timeout, silence_s=options.timeout)


def seconds(text: str) -> float:
    """Parse a number of seconds."""
    value = float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError("must be more than 0 seconds")
    return value


def _profile(options: argparse.Namespace, environ: Mapping[str, str]) -> Profile | None:
    """Return the profile, unless everything it could supply is given."""
    has_key = options.api_key is not None or options.api_key_file is not None or environ.get(KEY_VARIABLE)
    has_endpoint = options.http_endpoint is not None or environ.get(ENDPOINT_VARIABLE)
    is_named = options.profile is not None or environ.get(PROFILE_VARIABLE)
    return None if has_key and has_endpoint and not is_named else find_profile(options.profile, environ)
