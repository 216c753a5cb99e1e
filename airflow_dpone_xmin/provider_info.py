"""What Airflow reads to discover this provider. Imported by every Airflow process at start: it may import the version only."""

from __future__ import annotations

from typing import Any

from airflow_dpone_xmin import __version__

_PACKAGE, _INTEGRATION = "airflow_dpone_xmin", "dpone XMin"
_DATABASE_FORM = {"relabeling": {"schema": "Database"}}


def get_provider_info() -> dict[str, Any]:
    """The provider's description in the form of Airflow's ``provider_info.schema.json``.

    The two connection types add a form and a Test button that compares signed pins; connections of Airflow's own ``postgres``, ``mssql``
    and ``odbc`` types serve as well. Neither form can hold trust: who may sign is in Airflow's configuration only.
    """
    return {
        "package-name": "airflow-dpone-xmin",
        "name": _INTEGRATION,
        "description": "Keep a SQL Server table equal to a PostgreSQL table, deletes included, from ``xmin`` alone.",
        "versions": [__version__],
        "integrations": [{"integration-name": _INTEGRATION, "tags": ["software"]}],
        "hooks": [{"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.hooks.mssql", f"{_PACKAGE}.hooks.postgres"]}],
        "operators": [
            {"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.operators.campaign", f"{_PACKAGE}.operators.reconcile"]}
        ],
        "sensors": [{"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.sensors.repair_authority"]}],
        "triggers": [
            {"integration-name": _INTEGRATION, "python-modules": [f"{_PACKAGE}.triggers.campaign", f"{_PACKAGE}.triggers.repair_authority"]}
        ],
        "extra-links": [f"{_PACKAGE}.links.receipt.ReceiptLink"],
        "plugins": [{"name": "dpone_xmin", "plugin-class": f"{_PACKAGE}.plugins.xmin.XminPlugin"}],
        "connection-types": _connection_types(),
        "config": {"dpone_xmin": {"description": "The signed registry and who may sign it.", "options": _options()}},
    }


def _connection_types() -> list[dict[str, Any]]:
    text = {"type": ["string", "null"]}
    entry = {
        "label": "Registry entry",
        "description": "Entry of the signed registry that this connection answers for; empty means the entry that names this connection.",
        "schema": {**text, "maxLength": 128},
    }
    encrypt = {"label": "Encrypt", "description": "Empty means the driver's default.", "schema": {**text, "enum": ["yes", "strict", "no"]}}
    certificate = {"label": "Host name in certificate", "description": "Where it differs from the host.", "schema": text}
    modes = ["verify-full", "verify-ca", "require", "prefer", "allow", "disable"]
    return [
        {
            "connection-type": "dpone_xmin_postgres",
            "hook-class-name": f"{_PACKAGE}.hooks.postgres.PostgresSourceAuthorityHook",
            "hook-name": "PostgreSQL source (dpone XMin)",
            "ui-field-behaviour": _DATABASE_FORM,
            "conn-fields": {"dpone_registry_entry": entry, "sslmode": {"label": "SSL mode", "schema": {**text, "enum": modes}}},
        },
        {
            "connection-type": "dpone_xmin_mssql",
            "hook-class-name": f"{_PACKAGE}.hooks.mssql.MssqlDatabaseAuthorityHook",
            "hook-name": "SQL Server target (dpone XMin)",
            "ui-field-behaviour": _DATABASE_FORM,
            "conn-fields": {"dpone_registry_entry": entry, "Encrypt": encrypt, "HostNameInCertificate": certificate},
        },
    ]


def _options() -> dict[str, dict[str, Any]]:
    return {
        "registry": _option(
            "Location of the signed registry: a local path, or a URL that Airflow's object storage opens.",
            example="s3://aws_default@config/dpone/registry.json",
        ),
        "trusted_keys": _option(
            "Public key files of those who may sign the registry, separated by commas. Without one nothing runs.",
            example="/etc/dpone/registry.pub",
        ),
        "environment": _option(
            "The environment that this deployment is. A registry of another environment is refused. Empty accepts the registry's own.",
            example="production",
        ),
        "work_dir": _option(
            "Parent directory of the attempts' work directories. Empty means the system's temporary directory.",
            example="/var/lib/dpone",
        ),
    }


def _option(description: str, *, example: str) -> dict[str, Any]:
    return {"description": description + "\n", "version_added": "0.1.0", "type": "string", "example": example, "default": ""}
