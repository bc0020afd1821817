"""
Ask sources whether they answer and which columns they have, each in a process of its own with a time limit.

`probe` starts the program `python -m datasources.refresh.probe DIRECTORY PARENT`, which forks a process for each
source. One that hangs, or whose client library breaks, is killed without affecting the others. Nothing is loaded, and
nothing is written but scratch files below DIRECTORY.
"""

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from datasources.deadline import Deadline
from datasources.errors import DatasetError
from datasources.loading.loading_engine import LoadingEngine
from datasources.refresh.dry_run import inspect
from datasources.refresh.loader_process import MEMORY_PARTS, NICENESS, SPARE_BYTES
from datasources.sources.registry import import_source, source_of
from datasources.sources.source import Load
from queryengine.manifest import Column
from runtimeconf import handover
from runtimeconf.connector import Server
from runtimeconf.model import DatasetConfig
from runtimeconf.network import DEFAULT_CLIENT_TIMEOUT_S
from runtimeconf.plugins import CONNECTORS
from system import process_limits
from system.process_limits import die_with_parent

#: Seconds after its limit when the process of a source is killed.
_GRACE_S = 1.0
#: Seconds for the start of the program, beyond the limits of the sources.
_START_S = 20.0
#: The longest answer of one process. A process that reads files of others may send anything.
_MAX_ANSWER_BYTES = 32 * 1024 * 1024

_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """
    One source to ask.

    Args:
        dataset: The dataset, which is not a materialized view.
        version: The version of the source that is served, made with the same settings; None if unknown.
        asks_time: Whether to look up the time of its server too; only web servers and object storage have one.
        limit_s: Seconds until it must have answered.
        memory_limit_bytes: The memory of the engine that looks up the columns.
        scratch_bytes: The most bytes to download.
    """

    dataset: DatasetConfig
    version: str | None
    asks_time: bool
    limit_s: float
    memory_limit_bytes: int
    scratch_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """
    What a source answered.

    Attributes:
        columns: What a load would write; None if they were not read.
        faults: As in `dry_run.Inspection`.
        is_unchanged: Whether the source has the version that is served; its columns were not read then.
        is_reached: Whether it answered at all, as far as that is known.
        is_late: Whether the time limit ended it.
        is_hung: Whether it also had to be killed, or its process died.
        clock_ahead_s: By how many seconds the clock of its server is ahead of ours; None if unknown.
    """

    columns: tuple[Column, ...] | None = None
    faults: tuple[tuple[str, str], ...] = ()
    is_unchanged: bool = False
    is_reached: bool = False
    is_late: bool = False
    is_hung: bool = False
    clock_ahead_s: float | None = None


def probe(questions: Sequence[Question], environ: Mapping[str, str], parallel: int) -> list[Answer]:
    """
    Ask all sources, *parallel* at once, with the environment *environ*; return the answers in the same order.

    Raises:
        OSError: The program cannot be started, or there is no temporary directory.
        DatasetError: The program failed.
    """
    if not questions:
        return []
    rounds = -(-len(questions) // parallel)
    limit_s = _START_S + rounds * (max(question.limit_s for question in questions) + 2 * _GRACE_S)
    with (
        tempfile.TemporaryDirectory(prefix="querykeep-") as directory,
        _started(directory, environ, parallel) as process,
    ):
        request = json.dumps([handover.plain(question) for question in questions])
        try:
            text, _ = process.communicate(request.encode(), timeout=limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            text, _ = process.communicate()
        except BaseException:
            process.kill()
            raise
    answers = [Answer(is_hung=True, is_late=True)] * len(questions)
    try:
        for line in text.splitlines():
            index, fields = json.loads(line)
            answers[index] = _answer_of(fields)
        if process.returncode > 0:
            raise ValueError(process.returncode)  # noqa: TRY301 (the same sentence)
    except (ValueError, TypeError, LookupError) as exc:
        raise DatasetError("The program that asks the sources failed.") from exc
    return answers


def _started(directory: str, environ: Mapping[str, str], parallel: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 (our own program)
        [sys.executable, "-m", "datasources.refresh.probe", directory, str(os.getpid()), str(parallel)],
        cwd=_ROOT,
        env=dict(environ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # a library may quote anything
    )


def _answer_of(fields: Mapping[str, Any]) -> Answer:
    columns = None if fields["columns"] is None else tuple(Column(**column) for column in fields["columns"])
    faults = tuple((str(field), str(sentence)) for field, sentence in fields["faults"])
    return Answer(**{**fields, "columns": columns, "faults": faults})


@dataclass(slots=True)
class _Child:
    """The process of one source, and what it has sent so far."""

    index: int
    process: int
    end: float
    sent: bytearray


def main(directory: str, parent: int, parallel: int) -> None:
    """Read the questions from standard input, and print a line `[index, answer]` for each as it arrives."""
    die_with_parent(parent)
    results = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 1)  # a library may print anything
    os.environ.setdefault("TOKIO_WORKER_THREADS", "1")
    questions = [handover.rebuilt(Question, fields) for fields in json.loads(sys.stdin.buffer.read())]
    process_limits.confine(file_bytes=None, niceness=max(0, NICENESS - os.getpriority(os.PRIO_PROCESS, 0)))
    waiting = list(enumerate(questions))[::-1]
    with selectors.DefaultSelector() as running:
        while waiting or running.get_map():
            while waiting and len(running.get_map()) < parallel:
                index, question = waiting.pop()
                reader, child = _forked(index, question, Path(directory))
                running.register(reader, selectors.EVENT_READ, child)
            _collect(running, results)


def _forked(index: int, question: Question, directory: Path) -> tuple[int, _Child]:
    reader, writer = os.pipe()
    own = os.getpid()
    process = os.fork()
    if not process:
        try:
            die_with_parent(own)
            with suppress(Exception):  # `asked` says what is wrong with it.
                import_source(question.dataset.connector)
            process_limits.Memory().limit(int(MEMORY_PARTS * question.memory_limit_bytes) + SPARE_BYTES)
            answer = asked(question, directory / str(index))
            _write(writer, json.dumps(handover.plain(answer)).encode())
        finally:
            os._exit(0)
    os.close(writer)
    return reader, _Child(index, process, time.monotonic() + question.limit_s + _GRACE_S, bytearray())


def _collect(running: selectors.BaseSelector, results: int) -> None:
    """Wait for some output or a time limit; print the answers of processes that have ended, and kill late ones."""
    end = min(key.data.end for key in running.get_map().values())
    ready = {key.fd for key, _ in running.select(max(0.0, end - time.monotonic()))}
    for key in list(running.get_map().values()):
        child: _Child = key.data
        chunk = os.read(key.fd, 1 << 20) if key.fd in ready else None
        if chunk:
            child.sent += chunk
        is_late = time.monotonic() >= child.end
        if chunk == b"" or is_late or len(child.sent) > _MAX_ANSWER_BYTES:
            running.unregister(key.fileobj)
            os.close(key.fd)
            os.kill(child.process, signal.SIGKILL)
            # One that a device blocks does not even end then; it is left to the system.
            with suppress(ChildProcessError):
                os.waitpid(child.process, os.WNOHANG if is_late else 0)
            line = bytes(child.sent) if chunk == b"" else b""
            fallback = json.dumps(handover.plain(Answer(is_late=is_late, is_hung=True))).encode()
            _write(results, b"[%d,%s]\n" % (child.index, line or fallback))


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def asked(question: Question, scratch: Path) -> Answer:
    """Return the answer of one source. *scratch* is the name of a new directory, which is removed again."""
    dataset = question.dataset
    deadline = Deadline(question.limit_s, threading.Event())
    if has_silence_limit(dataset):
        # So that a silent server is told from one that sends a large file.
        silence_s = min(float(dataset.params.get("client_timeout", question.limit_s)), question.limit_s / 2)
        dataset = replace(dataset, params={**dataset.params, "client_timeout": silence_s})
    scratch.mkdir()
    load = Load(deadline=deadline, scratch=scratch, scratch_bytes=question.scratch_bytes)
    answer = Answer()
    try:
        import_source(dataset.connector)
        if question.version is not None:
            is_unchanged = not source_of(dataset).has_changed(question.version, load)
            answer = Answer(is_unchanged=is_unchanged, is_reached=True)
        if not answer.is_unchanged:
            found = inspect(dataset, LoadingEngine(scratch, question.memory_limit_bytes), load)
            is_read = all(field != "from" for field, _ in found.faults)
            answer = replace(
                answer, columns=found.columns, faults=found.faults, is_reached=answer.is_reached or is_read
            )
    except DatasetError as exc:
        answer = replace(answer, faults=(("from", str(exc)),))
    except Exception as exc:  # noqa: BLE001 (libraries raise anything; the text may hold anything)
        answer = replace(answer, faults=(("from", f"It cannot be read: the library failed ({type(exc).__name__})."),))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    answer = replace(answer, is_late=deadline.passed and bool(answer.faults))
    if question.asks_time and not answer.is_late:
        with suppress(Exception):
            answer = replace(answer, clock_ahead_s=_clock_ahead_s(dataset, deadline))
    return answer


def has_silence_limit(dataset: DatasetConfig) -> bool:
    """Return whether the connector of *dataset* gives a silent server up before the limit of the question."""
    return "client_timeout" in CONNECTORS[dataset.connector].params.declared


def server_of(dataset: DatasetConfig) -> Server | None:
    """Return the HTTP server that *dataset* is downloaded from; None if there is none."""
    return CONNECTORS[dataset.connector].params.of(dataset.params).server(dataset.location)


def _clock_ahead_s(dataset: DatasetConfig, deadline: Deadline) -> float:
    """Compare our clock with the Date header (RFC 9110, 6.6.1) of a request without credentials."""
    from datasources.sources.origin import Origin  # noqa: PLC0415 (other sources do not need it)

    found = server_of(dataset)
    assert found is not None  # noqa: S101 (`asks_time` says so)
    silence_s = dataset.params.get("client_timeout", DEFAULT_CLIENT_TIMEOUT_S)
    with Origin(found.origin, dataset.from_, deadline, silence_s, found.root_certificate_file) as server:
        began = time.time()
        with server.request("/", [("User-Agent", "dataset-loader")], method="HEAD") as answer:
            between = (began + time.time()) / 2
            # The header counts in whole seconds.
            return parsedate_to_datetime(answer.headers["date"]).timestamp() + 0.5 - between


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
