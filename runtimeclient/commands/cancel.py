"""`cancel`: cancel a queued or running statement."""

from runtimeclient.commands.base import Command, Invocation
from runtimeclient.output.terminal_text import one_line


def _call(invocation: Invocation) -> None:
    with invocation.connect() as client:
        message = client.cancel_query(invocation.options.query_id)
    invocation.console.write_line(one_line(message))


COMMAND = Command(
    name="cancel",
    summary="cancel a statement",
    description=(
        "Cancel a queued or running statement that was sent with the same key. It\n"
        "disappears from `queries` within two seconds."
    ),
    examples=(("9f2c41d07be84a53a1c6f0e2d9a48370", "cancel the statement with this id"),),
    add_arguments=lambda parser: parser.add_argument(
        "query_id", metavar="ID", help="the id of the statement, as shown by `queries`"
    ),
    call=_call,
)
