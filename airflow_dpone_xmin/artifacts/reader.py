"""Reads an artifact and proves, while reading, that it is the one that was written.

Imports pyarrow and contracts only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from io import RawIOBase

import pyarrow as pa

from airflow_dpone_xmin.contracts.envelope import Artifact
from airflow_dpone_xmin.contracts.errors import XminError

_TAIL = 1024 * 1024


class _HashingSource:
    """A read-only file object that hashes every byte it hands out, into 64-byte aligned buffers."""

    def __init__(self, file: RawIOBase) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.size = 0
        self.closed = False

    def read(self, wanted: int = -1) -> pa.Buffer:
        size = _TAIL if wanted is None or wanted < 0 else wanted
        buffer = pa.allocate_buffer(size, resizable=True)
        view = memoryview(buffer).cast("B")
        got = self._file.readinto(view)
        self._hash.update(view[:got])
        self.size += got
        return buffer if got == size else pa.py_buffer(bytes(view[:got]))

    def drain(self) -> None:
        """Hash what follows the end of the stream, so that appended bytes count too."""
        while len(self.read(_TAIL)) > 0:
            pass

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        return self.size

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._file.close()

    @property
    def digest(self) -> bytes:
        return self._hash.digest()


class ArtifactStream:
    """The batches of an artifact; its proof is complete when the last one has been taken.

    A consumer that speaks Arrow's C stream interface turns an exception of the producer into its own: :attr:`failure` keeps the
    original, :meth:`check` raises it.

    :param artifact: what the writer reported.
    :param columns: only these columns, in this order; all of them when None. The whole file is read and hashed either way.
    :raises XminError: ``storage.artifact_altered`` when the file is missing, has another size, or is no Arrow stream.
    """

    def __init__(self, artifact: Artifact, *, columns: tuple[str, ...] | None = None) -> None:
        self._artifact = artifact
        self._columns = columns
        self._complete = False
        self.failure: XminError | None = None
        try:
            size = artifact.path.stat().st_size
            if size != artifact.size:
                raise self._altered(f"has {size} bytes instead of {artifact.size}")
            self._source = _HashingSource(artifact.path.open("rb", buffering=0))
        except OSError:
            raise self._altered("cannot be read") from None
        try:
            self._stream = pa.ipc.open_stream(pa.PythonFile(self._source, mode="r"))
        except (pa.ArrowInvalid, OSError):
            self._source.close()
            raise self._altered("is not an Arrow stream") from None
        schema = self._stream.schema
        self.schema: pa.Schema = schema if columns is None else pa.schema([schema.field(name) for name in columns])
        self.reader: pa.RecordBatchReader = pa.RecordBatchReader.from_batches(self.schema, self._batches())

    def check(self) -> None:
        """:raises XminError: what stopped the stream, or ``storage.artifact_altered`` when it was not read to its proven end."""
        if self.failure is not None:
            raise self.failure
        if not self._complete:
            raise self._altered("was not read to its end")

    def close(self) -> None:
        """Release the file; safe to call twice."""
        self._source.close()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._verified()
            self._complete = True
        except XminError as error:
            self.failure = error
            raise
        finally:
            self._source.close()

    def _verified(self) -> Iterator[pa.RecordBatch]:
        rows = 0
        while True:
            try:
                batch = self._stream.read_next_batch()
                batch.validate()
            except StopIteration:
                break
            except (pa.ArrowInvalid, OSError):
                raise self._altered("is damaged") from None
            rows += batch.num_rows
            yield batch if self._columns is None else batch.select(list(self._columns))
        self._source.drain()
        if (rows, self._source.size, self._source.digest) != (self._artifact.rows, self._artifact.size, self._artifact.sha256):
            raise self._altered("has another digest")

    def _altered(self, how: str) -> XminError:
        return XminError(
            "storage.artifact_altered",
            f"The artifact {self._artifact.path.name!r} {how}.",
            details={"file": self._artifact.path.name, "expected_bytes": self._artifact.size, "expected_rows": self._artifact.rows},
        )
