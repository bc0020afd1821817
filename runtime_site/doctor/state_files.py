"""The state directory: whether it can be used, its disk, and what is left over in it; and the file of the history."""

import itertools
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from authkeys import salt
from authkeys.errors import SaltError
from datasources.refresh.loader_process import Disk
from datasources.snapshots.snapshot import SNAPSHOT_FILES
from queryengine.manifest import SNAPSHOT_DIRECTORY, Manifest, ManifestError, read_manifest, snapshot_path
from runtime_site.doctor.findings import Finding, error, note, ok, size, warning
from runtimeconf.model import HistoryConfig
from system.errors import StateDirectoryError
from system.lock import StateLock
from system.state_directory import judge_state_dir
from system.wallclock import utc_in
from telemetry import history_file

#: A directory with more entries is not read to its end.
MAX_ENTRIES = 20_000

_OTHERS = 0o077
#: The clock may differ by as many seconds between two machines that share a disk.
_TOLERANCE_S = 5.0

_FIX_OWNER = "Set runtime.state_dir to a directory that is the runtime's alone, or give this one to its user."


def check(state_dir: Path) -> Iterator[Finding]:
    """Yield what is wrong with the state directory; nothing in it is created or changed."""
    about, is_own = "state directory", True
    try:
        judge_state_dir(state_dir)
    except StateDirectoryError as exc:
        is_own = False
        yield error(about, str(exc), _FIX_OWNER)
    if not os.access(state_dir, os.F_OK):
        yield note(about, f"{state_dir} does not exist: the first start creates it.")
    elif not os.access(state_dir, os.R_OK | os.X_OK):
        yield error(about, f"{state_dir} cannot be read by this user.", "Run this command as the runtime's user.")
        return
    elif is_own and stat.S_IMODE(state_dir.stat().st_mode) & _OTHERS:  # Of others, such as /tmp, it must stay so.
        yield warning(about, f"Other users have rights on {state_dir}.", f"chmod 700 {state_dir}")
    manifest = Manifest(generation=0)
    try:
        manifest = read_manifest(state_dir)
    except ManifestError as exc:
        yield warning(about, f"{exc} All data is loaded again.", "Nothing, if the sources are reachable.")
    yield from _disk(state_dir, manifest)
    yield from _salt(state_dir)
    yield from _damaged(state_dir, manifest)
    yield from _left_over(state_dir, manifest)
    newest = max((snapshot.created_at for snapshot in manifest.snapshots), default="")
    if newest > utc_in(_TOLERANCE_S):
        yield warning(
            "clock",
            f"The newest data was loaded at {newest}, which is still to come: the clock was set back.",
            "Set the clock; the expiry of keys and the refresh intervals depend on it.",
        )


def check_history(config: HistoryConfig) -> Iterator[Finding]:
    """Yield whether statements can be written to the file of the history, if there is one."""
    if not config.enabled or config.file is None:
        return
    try:
        history_file.check(config.file)
    except OSError as exc:
        text = f"No statement can be written to {config.file}: {(exc.strerror or 'the system refuses it').lower()}."
        yield error("history", text, "Create its directory, or give both to the runtime's user.")
    else:
        yield ok("history", f"Statements can be written to {config.file}.")


def _disk(state_dir: Path, manifest: Manifest) -> Iterator[Finding]:
    existing = next(directory for directory in (state_dir, *state_dir.parents) if directory.is_dir())
    usage, flags = shutil.disk_usage(existing), os.statvfs(existing)
    sizes = [snapshot.size_bytes for snapshot in manifest.snapshots]
    largest = max(sizes, default=0)
    about, text = "disk", f"{size(usage.free)} are free, and the snapshots take {size(sum(sizes))}"
    if flags.f_flag & os.ST_NOEXEC:
        yield note(about, "The state directory is on a disk mounted noexec: no harm, nothing in it is executed.")
    if flags.f_files and not flags.f_favail:
        yield error(about, "The disk has no room for more files (inodes).", "Delete files, or use another disk.")
    if Disk.of(existing).room_bytes == 0:
        remedy = "Free space: loads leave a twentieth of the disk free, up to 1 GiB."
        yield error(about, f"{text}: no dataset can be loaded.", remedy)
    elif Disk.of(existing).room_bytes < largest:
        remedy = f"Free at least {size(largest - Disk.of(existing).room_bytes)}: a refresh writes a second file first."
        yield warning(about, f"{text}: the largest, of {size(largest)}, cannot be refreshed.", remedy)
    else:
        yield ok(about, f"{text}.")


def _salt(state_dir: Path) -> Iterator[Finding]:
    file = state_dir / salt.SALT_NAME
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = file.lstat().st_mode
        if stat.S_ISREG(mode) and mode & _OTHERS:  # Reading it by `load` would change that.
            yield warning("keys", f"Other users may read or change {file}.", f"chmod 600 {file}")
            return
    try:
        salt.load(state_dir)
    except SaltError as exc:
        yield error("keys", str(exc), f"Look at {file}.")


def _damaged(state_dir: Path, manifest: Manifest) -> Iterator[Finding]:
    for snapshot in manifest.snapshots:
        with suppress(OSError):
            if snapshot_path(state_dir, snapshot).stat().st_size == snapshot.size_bytes:
                continue
        text = "The file of its data is missing or has another size: the next start loads it again."
        yield error(f"dataset {snapshot.dataset}", text, f"Restart the runtime, or restore {SNAPSHOT_DIRECTORY}.")


def _left_over(state_dir: Path, manifest: Manifest) -> Iterator[Finding]:
    if StateLock(state_dir).is_taken():
        return  # A load may be writing them.
    used = {snapshot.file for snapshot in manifest.snapshots}
    entries, is_whole = listed(state_dir / SNAPSHOT_DIRECTORY)
    unused = [(name, count) for name, count in entries if name not in used and SNAPSHOT_FILES.fullmatch(name)]
    if unused:
        taken = size(sum(count for _, count in unused))
        more = "" if is_whole else " or more"
        text = f"{len(unused):,}{more} files of interrupted loads take {taken}: the next start deletes them."
        yield note("disk", text)


def listed(directory: Path) -> tuple[list[tuple[str, int]], bool]:
    """
    Return the names and sizes in bytes of the entries of *directory*, none if it cannot be read.

    At most `MAX_ENTRIES` of them; also returns whether these are all.
    """
    found = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in itertools.islice(entries, MAX_ENTRIES):
            with suppress(OSError):  # It has just been deleted.
                found.append((entry.name, entry.stat(follow_symlinks=False).st_size))
        return found, next(entries, None) is None
    return found, True
