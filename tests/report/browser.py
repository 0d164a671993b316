"""Headless Chromium for the tests of the report: one for the whole session."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.ui import WebDriverWait

REQUIRED = "VERIFY_ATTN_REQUIRE_BROWSER"
WIDE, PHONE = (1280, 900), (360, 740)


def missing():
    """Why there is no browser here, or None."""
    absent = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"no {' and no '.join(absent)} on the PATH" if absent else None


class Browser:
    """A page at a time; what it wrote to the console is kept until asked for."""

    def __init__(self, driver):
        self.driver = driver

    def open(self, path: Path, *, size=WIDE, dark=False, touch=False):
        """Open a file and wait until its charts are drawn."""
        self.emulate(size=size, dark=dark, touch=touch)
        self.driver.get("about:blank")
        self.console()
        self.driver.get(path.resolve().as_uri())
        self.drawn()

    def emulate(self, *, size=WIDE, dark=False, touch=False):
        """The screen and what its user prefers."""
        width, height = size
        self.command("Emulation.setDeviceMetricsOverride", width=width, height=height,
                     deviceScaleFactor=1, mobile=touch)  # fmt: skip
        self.command("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        ])  # fmt: skip

    def wait(self, text):
        """Until JavaScript returns something true."""
        WebDriverWait(self.driver, 20, 0.05).until(lambda _: self.script(text))

    def drawn(self):
        """Wait for the charts."""
        self.wait("return document.documentElement.dataset.charts === 'drawn'")

    def redraw(self, **preferences):
        """Change what the user prefers while the page is open, and wait for the charts."""
        self.script("document.documentElement.dataset.charts = 'old'")
        self.emulate(**preferences)
        self.drawn()

    def script(self, text, *args):
        """Run JavaScript in the page."""
        return self.driver.execute_script(text, *args)

    def command(self, name, **given):
        """A command of the DevTools protocol."""
        return self.driver.execute_cdp_cmd(name, given)

    def console(self):
        """What was written to the console since the last call."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def press(self, key):
        """A key, as from a keyboard."""
        from selenium.webdriver.common.action_chains import ActionChains

        ActionChains(self.driver, duration=0).send_keys(key).perform()

    def screenshot(self, path: Path, whole=False):
        """A PNG of what is seen, or of the whole page."""
        import base64

        shot = self.command("Page.captureScreenshot", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(shot["data"]))


@contextmanager
def browser():
    """A browser, closed at the end."""
    options = Options()
    options.binary_location = shutil.which("chromium")
    for flag in ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-background-networking", "--hide-scrollbars"):  # fmt: skip
        options.add_argument(flag)
    if os.geteuid() == 0:  # Chromium has no sandbox for root, as in most containers
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, Service(shutil.which("chromedriver")))
    try:
        yield Browser(driver)
    finally:
        driver.quit()
