"""`logout`: delete the key of a profile."""

from runtimeclient.commands.base import Command, Invocation
from runtimeclient.errors import UsageError
from runtimeclient.profiles.config import DEFAULT_PROFILE, PROFILE_VARIABLE
from runtimeclient.profiles.profile_store import ProfileStore, profile_name


def _call(invocation: Invocation) -> None:
    name = profile_name(invocation.options.profile, invocation.environ)
    store = ProfileStore(invocation.environ)
    profile = store.find(name)
    if profile is None:
        raise UsageError(f"There is no profile {name}.")
    store.delete_key(profile)
    invocation.console.write_line(f"The profile {name} no longer has a key.")
    kept = profile.api_key_variable or profile.api_key_file
    if profile.api_key_variable or (profile.api_key_file and profile.api_key_file.exists()):
        invocation.console.write_line(f"{kept} still holds the key: login did not create it.")


COMMAND = Command(
    name="logout",
    summary="delete the stored key of a runtime",
    description=(
        "Delete the key of a profile, and the keyring entry or file that login created\n"
        "for it. The endpoint stays. The runtime still accepts the key until its operator\n"
        "revokes it."
    ),
    examples=(("", "the default profile"), ("--profile test", "another profile")),
    add_arguments=lambda parser: parser.add_argument(
        "--profile", metavar="NAME", help=f"the profile (default: {PROFILE_VARIABLE}, else {DEFAULT_PROFILE})"
    ),
    call=_call,
    has_connection=False,
)
