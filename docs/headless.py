"""A headless browser without a network: for the pictures here, and for the tests of the page."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

CHROMIUM, DRIVER = "/usr/bin/chromium", "/usr/bin/chromedriver"
_FLAGS = (
    "headless=new", "no-sandbox", "disable-gpu", "disable-background-networking", "no-first-run",
    "disable-sync", "disable-component-update", "disable-dev-shm-usage",
    "host-resolver-rules=MAP * ~NOTFOUND", "hide-scrollbars",
)  # fmt: skip


def is_there() -> bool:
    """Tell whether Chromium and its driver are installed; `tests/provision.sh` does it."""
    return bool(shutil.which(CHROMIUM) and shutil.which(DRIVER))


@contextmanager
def browser(width: int, height: int, *, is_hand: bool = False) -> Iterator[Any]:
    """Start a browser whose page has just this size, in CSS pixels; its selenium driver."""
    from selenium import webdriver  # noqa: PLC0415 - the other pictures do without

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*_FLAGS, f"window-size={width},{height}", f"user-data-dir={profile}"):
            options.add_argument(f"--{flag}")
        driver = webdriver.Chrome(options, webdriver.ChromeService(DRIVER))
        try:
            screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": is_hand}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
            driver.execute_cdp_cmd("Network.enable", {})
            yield driver
        finally:
            driver.quit()


def prefer(driver: Any, scheme: str) -> None:  # noqa: ANN401 - selenium is not always there
    """Let the system ask for a colour scheme, `light` or `dark`."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
