"""Artifacts: hashed while written, verified while read, never left half-written."""

from __future__ import annotations

import hashlib
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from airflow_dpone_xmin.artifacts.reader import ArtifactStream
from airflow_dpone_xmin.artifacts.writer import ArtifactWriter
from airflow_dpone_xmin.contracts.envelope import Artifact
from airflow_dpone_xmin.contracts.errors import XminError

TABLE = pa.table({"id": pa.array(range(50_000), pa.int64()), "v": [f"text {i}" * 5 for i in range(50_000)]})


def write(path: Path, *, compression: str | None = None) -> Artifact:
    with ArtifactWriter(path, TABLE.schema, compression=compression) as writer:  # type: ignore[arg-type]
        for batch in TABLE.to_batches(max_chunksize=7_000):
            writer.write(batch)
    return writer.artifact(replayed_frozen=3)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_round_trip(tmp_path: Path, compression: str | None) -> None:
    artifact = write(tmp_path / "a.arrow", compression=compression)
    data = artifact.path.read_bytes()
    assert (artifact.size, artifact.sha256) == (len(data), hashlib.sha256(data).digest())
    assert (artifact.rows, artifact.columns, artifact.replayed_frozen) == (50_000, ("id", "v"), 3)
    assert stat.S_IMODE(artifact.path.stat().st_mode) == 0o600
    stream = ArtifactStream(artifact)
    assert stream.reader.read_all() == TABLE
    stream.check()
    assert ArtifactStream(artifact, columns=("v",)).reader.read_all() == TABLE.select(["v"])


def test_an_empty_artifact_has_a_schema(tmp_path: Path) -> None:
    with ArtifactWriter(tmp_path / "a.arrow", TABLE.schema) as writer:
        pass
    table = ArtifactStream(writer.artifact()).reader.read_all()
    assert (table.num_rows, table.schema) == (0, TABLE.schema)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def replace_with_other_rows(path: Path) -> None:
    size = path.stat().st_size
    path.unlink()
    other = write(path.with_name("other"))
    other.path.rename(path)
    path.write_bytes(path.read_bytes()[:8] + bytes(size - 8))


@pytest.mark.parametrize("damage", [flip, truncate, append, replace_with_other_rows, Path.unlink])
def test_damage_is_found_at_the_latest_after_the_last_batch(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    artifact = write(tmp_path / "a.arrow")
    damage(artifact.path)
    with pytest.raises(XminError) as caught:
        ArtifactStream(artifact).reader.read_all()
    assert caught.value.code == "storage.artifact_altered"


def test_a_foreign_consumer_cannot_hide_the_failure(tmp_path: Path) -> None:
    artifact = write(tmp_path / "a.arrow")
    flip(artifact.path)
    stream = ArtifactStream(artifact)
    with pytest.raises(pa.ArrowInvalid):
        pa.RecordBatchReader.from_stream(stream.reader).read_all()
    with pytest.raises(XminError) as caught:
        stream.check()
    assert caught.value.code == "storage.artifact_altered"


def test_an_unfinished_reading_is_no_proof(tmp_path: Path) -> None:
    stream = ArtifactStream(write(tmp_path / "a.arrow"))
    stream.reader.read_next_batch()
    with pytest.raises(XminError):
        stream.check()
    stream.close()


def test_an_error_removes_the_file(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="mine"), ArtifactWriter(tmp_path / "a.arrow", TABLE.schema) as writer:
        writer.write(TABLE.to_batches()[0])
        raise RuntimeError("mine")
    assert list(tmp_path.iterdir()) == []


def test_an_artifact_is_never_overwritten(tmp_path: Path) -> None:
    artifact = write(tmp_path / "a.arrow")
    with pytest.raises(XminError) as caught:
        write(tmp_path / "a.arrow")
    assert caught.value.code == "storage.write_failed"
    assert ArtifactStream(artifact).reader.read_all() == TABLE


def test_the_floor_holds_before_the_first_byte(tmp_path: Path) -> None:
    with pytest.raises(XminError) as caught:
        ArtifactWriter(tmp_path / "a.arrow", TABLE.schema, min_free_bytes=2**62)
    assert caught.value.code == "storage.floor"
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk(tmp_path: Path) -> None:
    """The operating system stops the file at 1 MB, in a process of its own because the limit cannot be raised again."""
    code = """
        import resource, sys
        from pathlib import Path
        sys.path.insert(0, ".")
        from airflow_dpone_xmin.contracts.errors import XminError
        from tests.artifacts.test_artifacts import write
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
        try:
            write(Path(sys.argv[1]))
        except XminError as error:
            print(error.code, error.retryable)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "a.arrow")], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "storage.write_failed True"
    assert list(tmp_path.iterdir()) == []


def test_memory_stays_flat_while_reading(tmp_path: Path) -> None:
    wide = pa.table({"v": ["x" * 1000] * 10_000})
    with ArtifactWriter(tmp_path / "a.arrow", wide.schema) as writer:
        for _ in range(20):
            for batch in wide.to_batches():
                writer.write(batch)
    artifact = writer.artifact()
    assert artifact.size > 200_000_000
    before = pa.total_allocated_bytes()
    peak = 0
    for batch in ArtifactStream(artifact).reader:
        peak = max(peak, pa.total_allocated_bytes() - before)
        del batch
    assert peak < 50_000_000
