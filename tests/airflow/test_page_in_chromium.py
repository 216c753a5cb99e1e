"""The page as a person sees it: inside Airflow's UI, in headless Chromium, light and dark.

``DPONE_SCREENSHOTS=docs/images`` also writes the pictures of the documentation.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from airflow.sdk.exceptions import AirflowFailException

from tests.airflow.chromium import Chromium, executable
from tests.airflow.conftest import Operator, context
from tests.airflow.test_page import fill_campaign, guarded
from tests.world import World

pytestmark = pytest.mark.skipif(executable() is None, reason="Chromium is not installed (Debian package chromium)")

INSIDE = "document.querySelector('iframe')?.contentDocument?.body?.innerText ?? ''"
COLOUR = "getComputedStyle({}.body).backgroundColor"


@pytest.fixture
def address(server: Any) -> Iterator[str]:
    """Airflow's API server on a free port."""
    web = uvicorn.Server(uvicorn.Config(server, host="127.0.0.1", port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=web.run)
    thread.start()
    while not web.started:
        assert thread.is_alive()
        time.sleep(0.05)
    yield f"http://127.0.0.1:{web.servers[0].sockets[0].getsockname()[1]}"
    web.should_exit = True
    thread.join()


@pytest.fixture
def browser(address: str) -> Iterator[Chromium]:
    """A browser whose user is logged in as a viewer."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    browser = Chromium(height=1250)
    browser.cookie(address, "_token", get_auth_manager().generate_jwt(SimpleAuthManagerUser(username="viewer", role="VIEWER")))
    yield browser
    browser.close()


def history(world: World, operator: Operator) -> str:
    """A dozen runs, some beside a transaction that holds U back, and one that a guard stops; returns the last receipt."""
    receipt = ""
    for number in range(12):
        world.source.run(f"UPDATE orders SET qty = qty + 1 WHERE id % 12 = {number}", f"DELETE FROM orders WHERE id = {number * 3 + 1}")
        with world.source.connect(autocommit=False) as blocker:
            if number in (4, 5, 9):
                blocker.execute("CREATE TABLE held (id int)")  # has an xid and stays open
                world.source.run(*["UPDATE orders SET qty = qty + 1 WHERE id = 40"] * (3 * number))
            receipt = operator(manifest=guarded(world)).execute(context(f"scheduled__2026-11-30T{number:02}:00:00+00:00"))["receipt_id"]
            blocker.rollback()
    world.source.run("DELETE FROM orders WHERE id > 30")
    with pytest.raises(AirflowFailException):
        operator(manifest=guarded(world)).execute(context("scheduled__2026-11-30T12:00:00+00:00"))
    fill_campaign(world)
    return receipt


def test_the_page_is_readable_inside_airflow_in_light_and_dark(
    browser: Chromium, address: str, deployment: World, operator: Operator
) -> None:
    receipt = history(deployment, operator)
    colours = {}
    for mode in ("light", "dark"):
        browser.go(f"{address}/")
        browser.until("document.readyState === 'complete'")
        browser.run(f"localStorage.setItem('theme', '{mode}')")  # as Airflow's own switch does
        browser.go(f"{address}/plugin/dpone-xmin")
        text = browser.until(INSIDE, lambda text: "orders_process" in (text or ""))
        assert "waiting for a decision" in text and "guard.deletes_exceeded" in text and "lane-a" in text
        frame = "document.querySelector('iframe').contentDocument"
        colours[mode] = browser.until(COLOUR.format(frame), lambda colour: colour not in ("", "rgba(0, 0, 0, 0)"))
        _picture(browser, f"page-{mode}.png")
    assert colours["light"] != colours["dark"]

    browser.go(f"{address}/dpone-xmin/receipts/dwh/{receipt}")
    assert "inserted" in browser.until("document.body?.innerText ?? ''", lambda text: receipt in (text or ""))
    _picture(browser, "receipt.png")
    assert browser.problems == [], "the page breaks its own content security policy, or misses a file"


def _picture(browser: Chromium, name: str) -> None:
    if folder := os.environ.get("DPONE_SCREENSHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.picture(Path(folder) / name)
