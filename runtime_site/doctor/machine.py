"""The machine: limits, processors, the sandbox, the clock, and the installed versions."""

import ctypes
import os
import platform
import resource
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata

from packaging.requirements import Requirement

from runtime_site.doctor.findings import Finding, error, note, ok, size, warning
from runtimeconf.model import RuntimeConfig
from supervisor import startup
from supervisor.project import EXTRAS, PROJECT, project
from system import control_groups, sandbox
from system.memory import memory_bytes
from system.process_limits import STACK_BYTES, hard_limit

#: The Python versions that are supported; `requires-python` of pyproject.toml.
_OLDEST, _NEWEST = (3, 11), (3, 14)

#: Distributions whose versions matter, of all that are installed.
_NAMED = ("duckdb", "pyarrow", "django", "gunicorn", "grpcio")

#: The answer of adjtimex(2) if the clock is not synchronised, and a size that no `struct timex` exceeds.
_TIME_ERROR = 5
_TIMEX_BYTES = 256

#: More workers bring no benefit: docs/operations.md, Sizing.
_WORKERS_PER_PROCESSOR = 2


def limits(config: RuntimeConfig) -> Iterator[Finding]:
    """Yield what memory, descriptors, stacks and processors mean for *config*."""
    sentences = startup.machine_warnings(config)
    for sentence in sentences:
        yield warning("limits", sentence, "See docs/operations.md, Sizing.")
    if hard_limit(resource.RLIMIT_STACK) < STACK_BYTES:
        yield warning(
            "limits",
            f"Stacks are limited to {size(hard_limit(resource.RLIMIT_STACK))}: deeply nested SQL may fail.",
            f"Raise the limit to at least {STACK_BYTES // 1024} KiB: ulimit -Hs, or LimitSTACK= of the unit.",
        )
    if not sentences:
        descriptors = hard_limit()
        shown = "any number of" if descriptors == sys.maxsize else f"{descriptors:,}"
        yield ok("limits", f"{size(memory_bytes())} of memory and {shown} file descriptors can be used.")
    yield from processors_for(config.query.workers, len(os.sched_getaffinity(0)), processor_quota())


def processors_for(workers: int, processors: int, quota: float | None) -> Iterator[Finding]:
    """Yield whether *processors* suit so many engine *workers*; *quota* is as `processor_quota` returns it."""
    if quota is not None and quota < processors:
        yield warning(
            "processors",
            f"The control group allows the time of {quota:g} of {processors} processors: the runtime starts a web "
            "process for each of them.",
            "Restrict the processors too: cpuset of the container, or CPUAffinity= of the unit.",
        )
    if workers > _WORKERS_PER_PROCESSOR * processors:
        yield note(
            "processors",
            f"runtime.query.workers is {workers}, and there are {processors} processors: more than "
            f"{_WORKERS_PER_PROCESSOR} workers for each bring no benefit.",
        )
    elif quota is None or quota >= processors:
        yield ok("processors", f"{processors} for {workers} engine workers.")


def processor_quota() -> float | None:
    """Return the number of processors whose time the control group of this process may use; None if all."""
    quotas = []
    for file in control_groups.files("cpu", "cpu.max", "cpu.max"):  # Version 1 has no such file.
        with suppress(OSError, ValueError):  # It is missing, or there is no limit (`max`).
            quota, period = file.read_text().split()
            quotas.append(int(quota) / int(period))
    return min(quotas, default=None)


def kernel() -> Iterator[Finding]:
    """Yield the features of the sandbox that the kernel lacks."""
    lacks = sandbox.missing()
    for feature in lacks:
        yield warning(
            "sandbox",
            f"The kernel, {platform.release()}, lacks {feature}: engine workers are confined less.",
            "Use Linux 6.2 or later with Landlock in the boot parameter lsm=; docs/security.md says what is missing.",
        )
    if not lacks:
        yield ok("sandbox", f"Linux {platform.release()} has Landlock and seccomp filters.")


def synchronised() -> Iterator[Finding]:
    """Yield whether the kernel takes its clock for right."""
    adjtimex = getattr(ctypes.CDLL(None), "adjtimex", None)
    if adjtimex is not None and adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)) == _TIME_ERROR:
        yield note(
            "clock",
            "The kernel says that its clock is not synchronised; the expiry of keys depends on it.",
            "Run chrony or systemd-timesyncd, unless the host of this machine keeps the time.",
        )


def installed() -> Iterator[Finding]:
    """Yield versions that are not supported, and libraries that are missing."""
    version, requirements = project()
    if not _OLDEST <= sys.version_info[:2] <= _NEWEST:
        yield error(
            "versions",
            f"Python {platform.python_version()} is not supported.",
            f"Use Python {'.'.join(map(str, _OLDEST))} to {'.'.join(map(str, _NEWEST))}.",
        )
    versions = library_versions()
    yield from unfit(versions, requirements)
    named = ", ".join(f"{name} {versions[name]}" for name in _NAMED if name in versions)
    yield ok("versions", f"{PROJECT} {version or '(unknown)'}, Python {platform.python_version()}, {named}.")


def unfit(versions: Mapping[str, str], requirements: Iterable[str]) -> Iterator[Finding]:
    """Yield which of the *requirements* are missing, or have other *versions*."""
    for requirement in map(Requirement, requirements):
        extra = _extra(requirement)
        has = versions.get(requirement.name)
        remedy = f"python -m pip install '{requirement.name}{requirement.specifier}'"
        if has is None and extra in {"", "server"}:  # A source that needs a library is a fault of the YAML.
            yield error("versions", f"{requirement.name} is not installed.", remedy)
        elif has is not None and extra is not None and not requirement.specifier.contains(has, prereleases=True):
            tested = f"this release is tested with {requirement.specifier}"
            yield warning("versions", f"{requirement.name} {has} is installed, and {tested}.", remedy)


def library_versions() -> dict[str, str]:
    """Return the versions of the installed libraries of this project, by name."""
    versions = {}
    for name in (Requirement(requirement).name for requirement in project()[1]):
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def _extra(requirement: Requirement) -> str | None:
    """Return which of `EXTRAS` needs *requirement*: "" if all need it, None if none does."""
    if requirement.marker is None:
        return ""
    return next((extra for extra in EXTRAS if requirement.marker.evaluate({"extra": extra})), None)
