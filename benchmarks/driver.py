"""The same extraction with another release of the source's driver.

From 1.9 on (1.13 is the newest that was looked at) the Linux wheels of ``adbc-driver-postgresql`` are compiled without optimisation: a
profile shows ``std::unique_ptr::operator->`` as a function that is called for every field. From 1.3 to 1.10 a connection that is lost at
the wrong moment aborts the process. Needs uv and a package registry.
"""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.place import ROOT, Extraction

OPTIMISED = "1.2.0"
"""The newest release without either fault; it cannot write decimals, so it serves as a source only."""
_MEASURE = """
import importlib.metadata, pickle, sys
assert importlib.metadata.version("adbc-driver-postgresql") == sys.argv[2]
with open(sys.argv[1], "rb") as file:
    extraction = pickle.load(file)
print(extraction.seconds())
"""


def find_uv() -> str | None:
    """The uv beside this interpreter, or that of the path."""
    return shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


class Unavailable(Exception):
    """The other release cannot be installed here."""


@contextmanager
def with_release(extraction: Extraction, version: str = OPTIMISED) -> Iterator[Callable[[], float]]:
    """Measure *extraction* in interpreters that find *version* of the driver before the installed one.

    :returns: a call that extracts once and returns its seconds, start of the interpreter not counted.
    :raises Unavailable: no uv, or no registry.
    """
    uv = find_uv()
    if uv is None:
        raise Unavailable("uv is not installed")
    wheels, job = extraction.directory.parent / f"driver_{version}", extraction.directory.parent / "extraction.pickle"
    wanted = [f"adbc-driver-postgresql=={version}", "importlib-resources"]
    command = [uv, "pip", "install", "--quiet", "--no-deps", "--python", sys.executable, "--target", str(wheels), *wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"release {version} does not install")
    job.write_bytes(pickle.dumps(extraction))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(wheels), str(ROOT)])}

    def once() -> float:
        measuring = [sys.executable, "-c", _MEASURE, str(job), version]
        return float(subprocess.run(measuring, env=environment, capture_output=True, text=True, check=True).stdout)

    try:
        yield once
    finally:
        shutil.rmtree(wheels)
        job.unlink()
