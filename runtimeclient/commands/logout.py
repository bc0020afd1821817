"""`logout`: delete the key of a profile."""

from __future__ import annotations

import argparse

from runtimeclient.commands.base import ClientCommand, Invocation
from runtimeclient.errors import UsageError
from runtimeclient.profiles.config import DEFAULT_PROFILE, PROFILE_VARIABLE, check_profile_name
from runtimeclient.profiles.profile_store import ProfileStore


class LogoutCommand(ClientCommand):
    """Delete the key of a profile."""

    name = "logout"
    summary = "delete the stored key of a runtime"
    description = (
        "Delete the key of a profile, and the keyring entry or file that login created\n"
        "for it. The endpoint stays. The runtime still accepts the key until its operator\n"
        "revokes it."
    )
    examples = (("", "the default profile"), ("--profile test", "another profile"))
    has_connection = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add `--profile`."""
        parser.add_argument(
            "--profile", metavar="NAME", help=f"the profile (default: {PROFILE_VARIABLE}, else {DEFAULT_PROFILE})"
        )

    def run(self, invocation: Invocation) -> None:
        """Delete the key."""
        named = invocation.options.profile
        name = named if named is not None else invocation.environ.get(PROFILE_VARIABLE) or DEFAULT_PROFILE
        store = ProfileStore(invocation.environ)
        profile = store.find(check_profile_name(name))
        if profile is None:
            raise UsageError(f"There is no profile {name}.")
        store.delete_key(profile)
        invocation.console.write_line(f"The profile {name} no longer has a key.")
        if profile.api_key_variable or (profile.api_key_file and profile.api_key_file.exists()):
            kept = profile.api_key_variable or profile.api_key_file
            invocation.console.write_line(f"{kept} still holds the key: login did not create it.")


COMMAND = LogoutCommand()
