"""`manage.py doctor`: check everything that a runtime needs, and say what to do."""

import json
import os
import signal
import sys
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.management.color import no_style

from runtime_site.doctor import bundle, cluster, listeners, machine, running, state_files
from runtime_site.doctor.configuration import Configuration
from runtime_site.doctor.findings import LEVELS, Finding, Level, note, run
from runtime_site.doctor.redaction import Scrubber, secrets_of
from runtime_site.doctor.sources import Sources
from runtime_site.logs import escaped
from runtime_site.management.base import add_config_option
from runtimeconf.state import config_path

#: Seconds for each check except that of the sources, whose time depends on their number.
_LIMIT_S = 30.0
#: Seconds for each source, unless `--timeout` says otherwise.
_SOURCE_LIMIT_S = 10.0

#: Signals that end the program; the bundle and the scratch files are removed first.
_ENDS = (signal.SIGTERM, signal.SIGHUP)

_STYLES = {"ok": "SUCCESS", "note": "HTTP_INFO", "warning": "WARNING", "error": "ERROR"}


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (seconds := float(text)) <= 3600:
            return seconds
    raise ArgumentTypeError("seconds, more than 0 and at most 3600")


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)


class Examination:
    """One run: the YAML *file*, and how its sources are asked."""

    def __init__(self, file: Path, *, offline: bool, source_limit_s: float) -> None:
        self.read = Configuration(file)
        self.runtime = running.Runtime()
        self._offline = offline
        self._source_limit_s = source_limit_s

    def findings(self) -> Iterator[Finding]:
        """Yield what is found, check by check."""
        read = self.read
        yield from run("configuration", read.read, _LIMIT_S)
        if (state_dir := read.state_dir) is not None:
            yield from run("state directory", lambda: state_files.check(state_dir), _LIMIT_S)
            yield from run("runtime", lambda: self._find(state_dir), _LIMIT_S)
        yield from run("sandbox", machine.kernel, _LIMIT_S)
        yield from run("versions", machine.installed, _LIMIT_S)
        yield from run("clock", machine.synchronised, _LIMIT_S)
        if (config := read.config) is None:
            yield note(
                "configuration", "Sources, addresses, certificate and keys were not checked: they need a valid YAML."
            )
            return
        yield from run("sql", read.check_sql, _LIMIT_S)
        yield from run("limits", lambda: machine.limits(config), _LIMIT_S)
        yield from run("history", lambda: state_files.check_history(config.history), _LIMIT_S)
        yield from run("addresses", lambda: listeners.addresses(config, self.runtime.own), _LIMIT_S)
        yield from run("certificate", lambda: listeners.certificate(config), _LIMIT_S)
        yield from run("runtime", lambda: running.Running(self.runtime, config).check(), _LIMIT_S)
        sources = Sources(config, self._source_limit_s)
        limit_s = _LIMIT_S + len(config.datasets) * (self._source_limit_s + 2)
        if config.snapshots is not None and not self._offline:
            from runtime_site.doctor import shared_storage  # noqa: PLC0415 (it needs the library for object storage)

            shared = config.snapshots
            yield from run("shared storage", lambda: shared_storage.check(shared), _LIMIT_S)
        yield from run("sources", lambda: sources.check(offline=self._offline), limit_s)
        yield from run("sql", lambda: read.check_views(sources.known), _LIMIT_S)
        if not self._offline:
            yield from run("cluster", lambda: cluster.check(config), _LIMIT_S)

    def _find(self, state_dir: Path) -> Iterable[Finding]:
        self.runtime = running.find(state_dir)
        return ()


class Command(BaseCommand):
    """Print one line for each finding, and exit with 1 if there is an error."""

    help = (
        "Checks the YAML, secrets, sources, disk, limits, clock, certificate, versions and the running runtime, and "
        "says what to do. Nothing is started or changed."
    )
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        add_config_option(parser)
        parser.add_argument("--offline", action="store_true", help="contact no source over the network")
        parser.add_argument(
            "--timeout",
            type=_seconds,
            default=_SOURCE_LIMIT_S,
            metavar="SECONDS",
            help="the time for each source (default: 10)",
        )
        parser.add_argument("--json", action="store_true", help="print the findings as JSON")
        parser.add_argument("--strict", action="store_true", help="exit with 1 if there are warnings, too")
        parser.add_argument(
            "--bundle",
            type=Path,
            metavar="FILE.tar.gz",
            help="write the findings and the redacted YAML to a new file, to send to others",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Examine, print, and write the bundle."""
        file: Path = options["config"] or config_path(os.environ)
        examination = Examination(file, offline=options["offline"], source_limit_s=options["timeout"])
        target: Path | None = options["bundle"]
        descriptor = None
        if target is not None:
            try:
                descriptor = bundle.create(target)
            except OSError as error:
                shown = escaped(str(target))
                raise CommandError(f"The bundle {shown} cannot be created: {error.strerror}.", returncode=2) from error
        caught = [number for number in _ENDS if signal.getsignal(number) is not signal.SIG_IGN]  # not by nohup
        former = {number: signal.signal(number, _end) for number in caught}
        try:
            findings = list(self._shown(examination, options))
            if descriptor is not None:
                with os.fdopen(descriptor, "wb") as stream:
                    stream.write(bundle.content(examination.read, findings, examination.runtime))
            counts = Counter(finding.level for finding in findings)
            self._conclude(findings, counts, options)
        except BaseException as error:
            if target is not None:
                target.unlink(missing_ok=True)
            if isinstance(error, OSError):
                self._discard()
                raise CommandError(f"The findings cannot be written: {error.strerror}.", returncode=2) from error
            raise
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)
        if counts["error"] or (options["strict"] and counts["warning"]):
            sys.exit(1)

    def _discard(self) -> None:
        """Discard what standard output has not taken: Python would try again at exit, and print a traceback."""
        with suppress(OSError, AttributeError):  # It is no file.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stdout.fileno())

    def _shown(self, examination: Examination, options: dict[str, Any]) -> Iterator[Finding]:
        """Yield the findings, and print each unless all are printed as JSON."""
        is_plain = not (options["force_color"] or (self.stdout.isatty() and not os.environ.get("NO_COLOR")))
        style = no_style() if is_plain else self.style
        scrubber = None
        for found in examination.findings():
            if scrubber is None and (config := examination.read.config) is not None:
                scrubber = Scrubber(secrets_of(config))
            text = found.text if scrubber is None else scrubber.scrubbed(found.text)
            finding = replace(found, text=escaped(text), remedy=escaped(found.remedy))
            yield finding
            if not options["json"]:
                level = getattr(style, _STYLES[finding.level])(f"{finding.level:<8}")
                self.stdout.write(f"{level} {finding.about}: {finding.text} {finding.remedy}".rstrip())
                self.stdout.flush()

    def _conclude(self, findings: list[Finding], counts: Counter[Level], options: dict[str, Any]) -> None:
        if options["json"]:
            listed = [{key: value for key, value in asdict(one).items() if key != "shared"} for one in findings]
            self.stdout.write(json.dumps({"counts": {level: counts[level] for level in LEVELS}, "findings": listed}))
        else:
            self.stdout.write(", ".join(f"{counts[level]} {level}" for level in LEVELS[::-1]))
        self.stdout.flush()
        if options["bundle"] is not None:
            self.stderr.write(
                f"The bundle is in {escaped(str(options['bundle']))}. Look through it before you send it.",
                no_style().ERROR,
            )
