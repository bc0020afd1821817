"""The program `querykeep`: the commands of the client and, with the `server` extra, those of `manage.py`."""

import sys

from runtimeclient import COMMANDS


def main() -> None:
    """Run the command that the arguments name, and exit; with 130 if Ctrl-C interrupts it, even while it is loaded."""
    try:
        _run()
    except KeyboardInterrupt:
        sys.exit(130)


def _run() -> None:
    # manage.py does not know all commands of the client.
    if sys.argv[1:2] == ["help"] and (not sys.argv[2:] or sys.argv[2] in COMMANDS):
        sys.argv[1:] = [*sys.argv[2:3], "--help"]
    name = "".join(sys.argv[1:2])
    if name in COMMANDS or name.startswith("-") or not name or not _has_server():
        from runtimeclient.main import main as run  # noqa: PLC0415 (a server does not need it)
    else:
        from manage import main as run  # noqa: PLC0415 (the client does not need it)
    run()


def _has_server() -> bool:
    from runtimeclient.distribution import is_installed  # noqa: PLC0415 (importlib.metadata is slow to import)

    return is_installed("server")


if __name__ == "__main__":
    main()
