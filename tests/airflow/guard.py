"""Airflow's own auth manager with two rights that can be lacked one by one. Named in configuration, so in a module of its own."""

from __future__ import annotations

from typing import Any

from airflow.api_fastapi.auth.managers.models.resource_details import AccessView, DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser


class Guard(SimpleAuthManager):
    """Airflow's simple auth manager, except that roles named here lack one right each."""

    def is_authorized_view(self, *, access_view: AccessView, user: SimpleAuthManagerUser) -> bool:
        return user.role != "NO_PLUGINS" and super().is_authorized_view(access_view=access_view, user=_viewer(user))

    def is_authorized_dag(self, *, user: SimpleAuthManagerUser, **kw: Any) -> bool:
        denied = user.role == "NO_XCOM" and kw.get("access_entity") is DagAccessEntity.XCOM
        return not denied and super().is_authorized_dag(user=_viewer(user), **kw)


def _viewer(user: SimpleAuthManagerUser) -> SimpleAuthManagerUser:
    return SimpleAuthManagerUser(username=user.username, role="VIEWER" if user.role and user.role.startswith("NO_") else user.role)
