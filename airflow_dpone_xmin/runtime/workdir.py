"""The work directory of one attempt: private, locked while alive, swept when dead. Imports contracts only."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from uuid import UUID

from airflow_dpone_xmin.contracts.errors import XminError
from airflow_dpone_xmin.contracts.route import Route

_LOCK = ".lock"
#: What another try may find mended; a path that cannot be is none of it.
_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
_ATTEMPT = re.compile(r"[0-9a-f]{32}")


def default_base() -> Path:
    """``DPONE_WORK_DIR``, or a directory of this user's below the system's temporary directory."""
    return Path(os.environ.get("DPONE_WORK_DIR") or Path(tempfile.gettempdir()) / f"dpone-xmin-{os.getuid()}")


def work_base(route: Route) -> Path:
    """Where a route's attempts keep their directories."""
    return Path(route.work_dir) if route.work_dir else default_base()


class AttemptDirectory:
    """``<base>/<load id>``, mode 0700; an advisory file lock tells living attempts from dead ones.

    :param base: directory that all attempts of this host share.
    :raises XminError: ``storage.write_failed``.
    """

    def __init__(self, base: Path, load_id: UUID) -> None:
        self.path = base / load_id.hex
        opening = base / f".opening-{load_id.hex}"
        try:
            base.mkdir(mode=0o700, parents=True, exist_ok=True)
            opening.mkdir(mode=0o700)
            self._lock = os.open(opening / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A sweep sees an attempt's directory only once it is locked.
            opening.rename(self.path)
        except OSError as error:
            raise XminError(
                "storage.write_failed",
                "The work directory cannot be created.",
                details={"path": str(base), "errno": error.errno or 0},
                retryable=error.errno in _PASSING,
            ) from None

    def __enter__(self) -> AttemptDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Remove the directory and give the lock back; a leftover is swept by the next run."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def sweep_directories(base: Path, *, keep: UUID) -> int:
    """Remove the directories of dead attempts; returns how many."""
    removed = 0
    for path in base.iterdir() if base.is_dir() else ():
        # The directory may be shared: only what has the name and the lock of an attempt is ours.
        if path.name == keep.hex or not _ATTEMPT.fullmatch(path.name) or path.is_symlink() or not (path / _LOCK).is_file():
            continue
        try:
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
            removed += 1
        except OSError:
            pass  # alive
        finally:
            os.close(lock)
    return removed
