"""`manage.py doctor`: check the prerequisites of a runtime, and suggest solutions."""

import json
import os
import platform
import sys
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.management.color import no_style
from msgspec.structs import asdict, replace

from doctor import checks, running
from doctor.findings import LEVELS, Finding, run
from doctor.sources import Sources
from runtime_site.logs import escaped
from runtime_site.management.base import add_config_option
from runtimeconf.state import config_path
from supervisor.version import version

_STYLES = {"ok": "SUCCESS", "note": "HTTP_INFO", "warning": "WARNING", "error": "ERROR"}


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) <= 3600:
            return seconds
    raise ArgumentTypeError("seconds, more than 0 and at most 3600")


def examine(file: Path, *, offline: bool, source_limit_s: float) -> Iterator[Finding]:
    """Yield the findings about the runtime of the configuration file *file*, check by check."""
    read, runtime = checks.Configuration(file), running.Runtime()
    yield Finding("ok", "versions", f"querykeep {version()}, Python {platform.python_version()}.")
    yield from run("configuration", read.read)
    if (state_dir := read.state_dir) is not None:
        yield from run("state directory", lambda: checks.state_directory(state_dir))
        with suppress(OSError):  # The check above reports the reason.
            runtime = running.find(state_dir)
    if (config := read.config) is None:
        yield Finding("note", "configuration", "The other checks need a valid configuration.")
        return
    yield from run("addresses", lambda: checks.addresses(config, frozenset(runtime.processes)))
    yield from run("certificate", lambda: checks.certificate(config.tls))
    yield from run("limits", lambda: checks.machine(config))
    yield from run("runtime", lambda: running.check(runtime, config))
    sources = Sources(config, source_limit_s)
    yield from sources.check(offline=offline)
    yield from run("sql", lambda: checks.views(config, sources.known))


class Command(BaseCommand):
    """Print one line for each finding, and exit with 1 if there is an error."""

    help = (
        "Checks the configuration, secrets, sources, state directory, disk, limits, clock, certificate and the running "
        "runtime, and suggests fixes. Nothing is started or changed."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add_config_option(parser)
        parser.add_argument("--offline", action="store_true", help="do not contact sources over the network")
        parser.add_argument(
            "--timeout",
            type=_seconds,
            default=10.0,
            metavar="SECONDS",
            help="the time limit for each source (default: 10)",
        )
        parser.add_argument("--json", action="store_true", help="print the findings as JSON")
        parser.add_argument("--strict", action="store_true", help="exit with 1 even if there are only warnings")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the checks and print the findings."""
        file: Path = options["config"] or config_path(os.environ)
        if os.environ.get("NO_COLOR") and not options["force_color"]:
            self.style = no_style()
        found: list[Finding] = []
        try:
            for finding in examine(file, offline=options["offline"], source_limit_s=options["timeout"]):
                text = escaped(finding.text).rstrip(".")
                found.append(replace(finding, text=f"{text}.", remedy=escaped(finding.remedy)))
                if not options["json"]:
                    self._print(found[-1])
            counts = Counter(finding.level for finding in found)
            if options["json"]:
                report = {"counts": {level: counts[level] for level in LEVELS}, "findings": list(map(asdict, found))}
                self.stdout.write(json.dumps(report))
            else:
                self.stdout.write(", ".join(f"{counts[level]} {level}" for level in LEVELS[::-1]))
            self.stdout.flush()
        except OSError as error:
            with suppress(OSError, AttributeError):  # Python would try again at exit, and print a traceback.
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.stdout.fileno())
            raise CommandError(f"The findings cannot be written: {error.strerror}.", returncode=2) from error
        if counts["error"] or (options["strict"] and counts["warning"]):
            sys.exit(1)

    def _print(self, finding: Finding) -> None:
        level = getattr(self.style, _STYLES[finding.level])(f"{finding.level:<8}")
        self.stdout.write(f"{level} {finding.about}: {finding.text} {finding.remedy}".rstrip())
        self.stdout.flush()
