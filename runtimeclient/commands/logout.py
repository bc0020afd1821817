"""`logout`: forget the key of a profile."""

from __future__ import annotations

import argparse

from runtimeclient.command import ClientCommand, Invocation
from runtimeclient.errors import UsageError
from runtimeclient.profile_store import ProfileStore
from runtimeclient.profiles import DEFAULT_PROFILE, PROFILE_VARIABLE, check_profile_name


class LogoutCommand(ClientCommand):
    """Forget the key of a profile."""

    name = "logout"
    summary = "forget the key of a runtime"
    description = (
        "Take the key out of a profile, and out of the keyring or the file that login\n"
        "put it in. The endpoint stays. The runtime still takes the key: its operator\n"
        "revokes it."
    )
    examples = (("", "the profile that applies when none is named"), ("--profile test", "another one"))
    talks = False

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add what is special to `logout`."""
        parser.add_argument(
            "--profile",
            metavar="NAME",
            help=f"the profile; without it {PROFILE_VARIABLE} of the environment, else {DEFAULT_PROFILE}",
        )

    def run(self, invocation: Invocation) -> None:
        """Forget it."""
        named = invocation.options.profile
        name = named if named is not None else invocation.environ.get(PROFILE_VARIABLE) or DEFAULT_PROFILE
        store = ProfileStore(invocation.environ)
        profile = store.find(check_profile_name(name))
        if profile is None:
            raise UsageError(f"There is no profile {name}.")
        store.forget_key(profile)
        output = invocation.console.output()
        output.write(f"The profile {name} has no key any more.\n")
        if profile.api_key_variable or (profile.api_key_file and profile.api_key_file.exists()):
            output.write(f"What held it stays: {profile.api_key_variable or profile.api_key_file}.\n")
        output.flush()


COMMAND = LogoutCommand()
