"""Writes one immutable Arrow IPC stream file and knows its rows, size and SHA-256 when it is closed.

The digest is taken on the way to the disk, so no second pass is needed. Imports pyarrow and contracts only.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Literal

import pyarrow as pa

from airflow_dpone_xmin.contracts.envelope import Artifact
from airflow_dpone_xmin.contracts.errors import XminError

#: Free space is asked for once per this many bytes, not once per batch.
_FLOOR_STEP = 64 * 1024 * 1024


class _HashingSink:
    """A write-only file object: hashes, counts and stores every byte once."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._hash = hashlib.sha256()
        self.size = 0
        self.closed = False

    def write(self, data: bytes) -> int:
        view = memoryview(data).cast("B")
        self._hash.update(view)
        done = 0
        while done < len(view):
            done += os.write(self._descriptor, view[done:])
        self.size += done
        return done

    def flush(self) -> None:
        """Nothing is buffered here."""

    def tell(self) -> int:
        return self.size

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            os.close(self._descriptor)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()


class ArtifactWriter:
    """Context manager around one artifact file; leaving it by an exception removes the file.

    :param path: file that does not exist yet, in a directory of this attempt; created with mode 0600.
    :param schema: Arrow schema of every batch.
    :param compression: ``zstd`` or None.
    :param min_free_bytes: free bytes of the file system below which nothing more is written.
    :param check: looks at every batch before it is stored, in the thread that stores it, and raises to refuse it.
    :raises XminError: ``storage.floor``, ``storage.write_failed``.
    """

    def __init__(
        self,
        path: Path,
        schema: pa.Schema,
        *,
        compression: Literal["zstd"] | None = None,
        min_free_bytes: int = 0,
        check: Callable[[pa.RecordBatch], None] | None = None,
    ) -> None:
        self._path, self._schema, self._check = path, schema, check
        self._floor = min_free_bytes
        self._checked = -_FLOOR_STEP
        self._rows = 0
        self._artifact: Artifact | None = None
        # One batch is checked, hashed and stored while the caller decodes the next; all of it happens outside the interpreter's lock.
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="dpone-xmin-artifact")
        self._pending: Future[None] | None = None
        self._check_floor(0)
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o600)
        except OSError as error:
            raise _write_failed(path, error) from None
        self._sink = _HashingSink(descriptor)
        try:
            self._stream = pa.ipc.new_stream(
                pa.PythonFile(self._sink, mode="w"), schema, options=pa.ipc.IpcWriteOptions(compression=compression)
            )
        except OSError as error:
            self._discard()
            raise _write_failed(path, error) from None

    def write(self, batch: pa.RecordBatch) -> None:
        """Append one batch; an error of checking or storing it is raised by the next call or by leaving the context."""
        self._settle()
        self._check_floor(batch.nbytes)
        self._pending = self._thread.submit(self._store, batch)
        self._rows += batch.num_rows

    def _store(self, batch: pa.RecordBatch) -> None:
        if self._check is not None:
            self._check(batch)
        self._stream.write_batch(batch)

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return self._rows

    @property
    def size(self) -> int:
        """Bytes written so far."""
        return self._sink.size

    def artifact(self, *, replayed_frozen: int = 0) -> Artifact:
        """The finished artifact; only after the context has been left without an error."""
        if self._artifact is None:
            raise RuntimeError("the artifact is not complete yet")
        return replace(self._artifact, replayed_frozen=replayed_frozen)

    def __enter__(self) -> ArtifactWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is not None:
                self._discard()
                return
            self._settle()
            self._stream.close()
            self._sink.close()
        except BaseException as failure:
            self._discard()
            if isinstance(failure, OSError):
                raise _write_failed(self._path, failure) from None
            raise
        finally:
            self._thread.shutdown()
        self._artifact = Artifact(
            path=self._path, rows=self._rows, size=self._sink.size, sha256=self._sink.digest, columns=tuple(self._schema.names)
        )

    def _settle(self) -> None:
        """Wait for the batch in flight and raise what befell it."""
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except OSError as error:
            raise _write_failed(self._path, error) from None

    def _discard(self) -> None:
        self._thread.shutdown()
        self._sink.close()
        self._path.unlink(missing_ok=True)

    def _check_floor(self, upcoming: int) -> None:
        size = self._sink.size if hasattr(self, "_sink") else 0
        if size + upcoming - self._checked < _FLOOR_STEP:
            return
        self._checked = size
        require_free(self._path, floor=self._floor, upcoming=upcoming)


def require_free(path: Path, *, floor: int, upcoming: int = 0) -> None:
    """Check that at least *floor* bytes stay free where *path* is written.

    :param upcoming: bytes that are about to be written.
    :raises XminError: ``storage.floor``, ``storage.write_failed``.
    """
    try:
        status = os.statvfs(path.parent)
    except OSError as error:
        raise _write_failed(path, error) from None
    free = status.f_bavail * status.f_frsize
    if free - upcoming < floor:
        raise XminError(
            "storage.floor",
            f"{free} bytes are free where the artifact is written; the floor is {floor}.",
            details={"free_bytes": free, "min_free_bytes": floor},
        )


def _write_failed(path: Path, error: OSError) -> XminError:
    return XminError(
        "storage.write_failed",
        f"The artifact {path.name!r} could not be written (errno {error.errno}).",
        details={"file": path.name, "errno": error.errno or 0},
    )
