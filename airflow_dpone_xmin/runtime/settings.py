"""Where the registry is and who may sign it: the owner's configuration, never a connection that the UI can edit.

Precedence: option, environment variable, Airflow's section ``[dpone_xmin]``. Airflow is imported only when something is still missing
and an Airflow installation is configured here. Imports contracts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow_dpone_xmin.contracts.errors import XminError

SECTION = "dpone_xmin"


@dataclass(frozen=True, slots=True)
class Settings:
    """What an environment's owner configured.

    :param registry: local path or URL of the signed registry.
    :param trusted_keys: public key files.
    :param environment: the environment that this deployment is; None accepts the registry's own.
    :param work_dir: parent directory of the attempts' work directories.
    """

    registry: str | None = None
    trusted_keys: tuple[str, ...] = ()
    environment: str | None = None
    work_dir: str | None = None

    def require_registry(self) -> str:
        """:raises XminError: ``registry.location_missing``."""
        if self.registry is None:
            raise XminError("registry.location_missing", "Neither an option, DPONE_REGISTRY nor Airflow's configuration names a registry.")
        return self.registry


def resolve_settings(
    *,
    registry: str | None = None,
    trusted_keys: Sequence[str] = (),
    environment: str | None = None,
    work_dir: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Fill what the options leave open.

    :param environ: for tests; ``os.environ`` otherwise.
    """
    env = os.environ if environ is None else environ
    known = Settings(
        registry=registry or env.get("DPONE_REGISTRY") or None,
        trusted_keys=tuple(trusted_keys) or split_list(env.get("DPONE_TRUSTED_KEYS")),
        environment=environment or env.get("DPONE_ENVIRONMENT") or None,
        work_dir=work_dir or env.get("DPONE_WORK_DIR") or None,
    )
    # Which environment this is may be pinned there although everything else was given here.
    if (known.registry and known.trusted_keys and known.environment) or not airflow_is_configured(env):
        return known
    configured = _from_airflow()
    return Settings(
        registry=known.registry or configured.registry,
        trusted_keys=known.trusted_keys or configured.trusted_keys,
        environment=known.environment or configured.environment,
        work_dir=known.work_dir or configured.work_dir,
    )


def airflow_is_configured(env: Mapping[str, str] | None = None) -> bool:
    """Whether asking Airflow can help. Importing it needlessly costs seconds and creates a home directory.

    :param env: for tests; ``os.environ`` otherwise.
    """
    env = os.environ if env is None else env
    if "airflow.configuration" in sys.modules or any(name.startswith("AIRFLOW__") for name in env):
        return True
    home = Path(env.get("AIRFLOW_HOME") or "~/airflow").expanduser()
    return Path(env.get("AIRFLOW_CONFIG") or home / "airflow.cfg").expanduser().is_file()


def split_list(value: str | None) -> tuple[str, ...]:
    """Entries of a comma-separated list, blanks removed."""
    return tuple(part.strip() for part in (value or "").split(",") if part.strip())


def _from_airflow() -> Settings:
    from airflow.configuration import conf

    def value(option: str) -> str | None:
        return conf.get(SECTION, option, fallback=None) or None

    return Settings(
        registry=value("registry"),
        trusted_keys=split_list(value("trusted_keys")),
        environment=value("environment"),
        work_dir=value("work_dir"),
    )
