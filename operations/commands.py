"""The command-line interface of `init` and `apikey`. The implementation is imported when they are called."""

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from runtimeclient.commands.base import Command, Invocation, add_list_format


def _later(module: str) -> Callable[[Invocation], None]:
    """Return a function that imports *module* and the YAML reader when called. This keeps the help fast."""

    def call(invocation: Invocation) -> None:
        import_module(module).call(invocation)

    return call


def _add_apikey_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("create", "list", "check"), help="what to do")
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the name of the key to create: a-z, 0-9 and -; it appears in logs"
    )
    create = parser.add_argument_group("create")
    create.add_argument(
        "--expires", metavar="90d|DATE", help="when the key expires: after this time, or at the end of this day (UTC)"
    )
    create.add_argument("--datasets", metavar="A,B", help="the datasets that the key can read (default: all)")
    create.add_argument(
        "--rows",
        metavar="DATASET=SQL",
        action="append",
        help="limit the key to the rows of this dataset for which the SQL is true; can be repeated",
    )
    create.add_argument("--rights", metavar="A,B", help="query, refresh or both (default: query)")
    create.add_argument("--requests-per-minute", metavar="N", help="a limit of the key (default: none)")
    create.add_argument("--concurrent", metavar="N", help="how many of its statements run at once (default: no limit)")
    create.add_argument(
        "--timeout", metavar="5s", help="the time limit for its statements, if shorter than query.timeout"
    )
    configured = parser.add_argument_group("list and check")
    configured.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        help="the configuration file (default: the one named by RUNTIME_CONFIG, else runtime.yaml)",
    )
    add_list_format(parser)


_APIKEY = Command(
    name="apikey",
    description=(
        "Create an API key and its configuration entry with its digest; list the configured keys and when they were\n"
        "last used; or check which entry a key from standard input matches. No runtime needs to be running."
    ),
    examples=(
        ("create dashboard --expires 90d --datasets flights", "print a new key, and the entry for named_keys"),
        ("create acme --rows \"orders=tenant = 'acme'\"", "a key that can see some rows of one dataset"),
        ("create app --requests-per-minute 600 --concurrent 4 --timeout 5s", "a key with limits"),
        ("list --config runtime.yaml", "what each key can do, and when it was last used"),
        ("check --config runtime.yaml < key.txt", "show the entry of this key"),
    ),
    add_arguments=_add_apikey_arguments,
    call=_later("operations.apikey"),
    has_connection=False,
)

_INIT = Command(
    name="init",
    description=(
        "Write runtime.yaml for data files, and an API key in the file api_key, both in the working directory.\n"
        "Print the two lines to run next: the first starts the runtime, the second queries it.\n"
        "If runtime.yaml exists, add the files to its datasets and leave the rest unchanged."
    ),
    examples=(
        ("orders.parquet", "serve this file as the table orders"),
        ("customers.csv products.json", "serve two files; if runtime.yaml exists, add them to it"),
        ("", "without data; list it in runtime.yaml"),
    ),
    add_arguments=lambda parser: parser.add_argument(
        "files", nargs="*", metavar="FILE", help="the data: Parquet, CSV, JSON or Excel; text may end in .gz or .zst"
    ),
    call=_later("operations.init"),
    has_connection=False,
)

COMMANDS = {command.name: command for command in (_APIKEY, _INIT)}
