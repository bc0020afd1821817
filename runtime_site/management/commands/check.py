"""`manage.py check`: Django's checks, and checks of the configuration file, the data and the machine."""

import io
import os
import re
import textwrap
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from django.core import checks
from django.core.management.base import CommandParser, OutputWrapper, SystemCheckError
from django.core.management.commands import check

import runtimeconf.state
from authkeys import salt
from authkeys.errors import SaltError
from datasources.refresh.dry_run import dry_run
from queryengine.execution import rule_gate
from runtime_site.management.base import add_config_option, use_config
from runtimeconf.errors import ConfigError
from runtimeconf.loader import examine
from runtimeconf.model import RuntimeConfig
from runtimeconf.state import config_path
from runtimeconf.survey import Use, survey
from supervisor import startup
from system.addresses import bind_problem
from system.errors import StateDirectoryError
from system.state_directory import judge_state_dir

#: The number of YAML lines shown for one field, and the characters in a line of the table.
MAX_SHOWN_LINES = 5
WIDTH = 100


class Command(check.Command):
    """Check without starting or changing anything."""

    help = "Checks the configuration, its SQL, the files of its datasets and the machine. Nothing is started."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        super().add_arguments(parser)
        add_config_option(parser)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run on the command line, where a missing configuration file is an error. `manage.py test` calls `handle`."""
        os.environ[runtimeconf.state.ENVIRONMENT_VARIABLE] = str(config_path(os.environ))
        super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the checks of every command, and the checks of the machine and the data."""
        use_config(options["config"])
        found = examine(config_path(os.environ), os.environ)
        for line in _table(survey(found)):
            self.stdout.write(line)
        # The checks use this result, so that a secret store is queried only once.
        try:
            runtimeconf.state.set_config(found.config())
            kept = [f"  {line}" for line in rule_gate.means(runtimeconf.state.get_config())]
            for line in ["Rules of keys:", *kept] if kept else ():
                self.stdout.write(line)
        except ConfigError as error:
            runtimeconf.state.set_config(error)
        checks.register(check_runtime)
        super().handle(*args, **options)

    def check(self, *args: Any, **options: Any) -> None:
        """Print the results of the checks as Django does, but in file order."""
        said, stderr = io.StringIO(), self.stderr
        self.stderr = OutputWrapper(said)
        try:
            super().check(*args, **options)
        except SystemCheckError as error:
            raise SystemCheckError(in_line_order(str(error))) from None
        finally:
            self.stderr = stderr
        if said.getvalue():
            self.stderr.write(in_line_order(said.getvalue()), lambda text: text, ending="")


#: The file and the line of a message that Django has printed.
_PLACE = re.compile(r"\?: \([\w.]+\) (.+?):([0-9]+): ")


def in_line_order(text: str) -> str:
    """Return *text* with messages sorted by file and line. Django sorts them as text, with line 10 before line 2."""
    lines: list[str] = []
    for is_message, group in groupby(text.split("\n"), lambda line: "?: (" in line):
        block = list(group)
        lines += sorted(block, key=_place) if is_message else block
    return "\n".join(lines)


def _place(line: str) -> tuple[bool, str, int]:
    """Return the sort key of a message. Messages without a line, such as a count, come last."""
    match = _PLACE.search(line)
    return (True, "", 0) if match is None else (False, match[1], int(match[2]))


def _table(uses: Sequence[Use]) -> Iterator[str]:
    """Yield the compatibility report: the fields of a Spicepod, with fields that need attention first."""
    for verdict in ("unsupported", "supported, different meaning"):
        those = sorted((use.path, use.remark, use.lines) for use in uses if use.verdict == verdict)
        yield from [f"{verdict.capitalize()}:"] if those else []
        for path, remark, lines in those:
            shown = ", ".join(map(str, lines[:MAX_SHOWN_LINES])) + (", ..." if len(lines) > MAX_SHOWN_LINES else "")
            yield f"  {path} (line{'s' if len(lines) > 1 else ''} {shown})"
            yield from textwrap.wrap(remark, WIDTH, initial_indent="      ", subsequent_indent="      ")
    supported = sorted({use.path for use in uses if use.verdict == "supported"})
    yield from ["Supported:"] if supported else []
    yield from textwrap.wrap(", ".join(supported), WIDTH, initial_indent="  ", subsequent_indent="  ")


def check_runtime(*_: Any, **__: Any) -> list[checks.CheckMessage]:
    """Return problems of the state directory, addresses, machine, sources and views, without changing anything."""
    try:
        config = runtimeconf.state.get_config()
    except ConfigError:
        return []  # runtimeconf's own check reports the reason.
    messages: list[checks.CheckMessage] = [
        *(checks.Error(text, id="runtime_site.E003") for text in _start_problems(config)),
        *(checks.Warning(text, id="runtime_site.W002") for text in startup.machine_warnings(config)),
    ]
    try:
        config = startup.with_checked_statements(config)
        found = dry_run(config)
    except ConfigError:
        pass  # Another check reports it.
    except StateDirectoryError as error:
        messages.append(checks.Error(str(error), id="runtime_site.E003"))
    else:
        messages += [checks.Error(str(fault), id="runtime_site.E002") for fault in found.errors]
        messages += [checks.Warning(str(fault), id="runtime_site.W001") for fault in found.warnings]
    return messages


def _start_problems(config: RuntimeConfig) -> Iterator[str]:
    """Yield a sentence for each problem that would prevent startup, except a port used by a running runtime."""
    try:
        judge_state_dir(config.state_dir)
        if config.auth.enabled:
            salt.load(config.state_dir)
    except (StateDirectoryError, SaltError) as error:
        yield str(error)
    used = ((config.http, True), (config.flight, config.flight.enabled), (config.metrics, config.metrics.enabled))
    for listener, is_used in used:
        if is_used and (problem := bind_problem(listener.bind)) is not None:
            yield problem
