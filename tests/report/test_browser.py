"""The report page in a real Chromium: one start of it, one page with everything, looked at in several ways."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.cli import commands
from tests.report.examples import p2p_results, trained

webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed: pip install '.[test]'")

PATIENCE = 120  # seconds for the charts on a machine that does much else
PHONE = 390
HOSTILE = "</script><script>window.owned=1</script><img src=x onerror='window.owned=1'>"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a training with a benchmark's results, and with texts that would rather be HTML."""
    folder = tmp_path_factory.mktemp("report")
    results = p2p_results()
    results["matrix"]["hosts"][1] = HOSTILE
    words = "".join(f"[0] line {number}\n" for number in range(100)) + HOSTILE
    run = trained(folder, words=words, results=results, overrides=[f"name={HOSTILE}"])
    run.write_result({"accuracy": 0.98, HOSTILE: HOSTILE})
    path = folder / "page.html"
    assert commands.main(["report", str(run.path), "--output", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def browser(page: Path) -> Iterator[Any]:
    """A Chromium that has loaded the page and drawn its charts."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    if missing:
        reason = f"{' and '.join(missing)} not installed: run tests/setup_debian.sh as root"
        if os.environ.get("CI", "").lower() in ("true", "1"):
            pytest.fail(f"CI must look at the page, but: {reason}", pytrace=False)
        pytest.skip(reason)
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chromium = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        chromium.set_script_timeout(PATIENCE)
        show(chromium, width=1200, scheme="light")
        chromium.get(page.as_uri())
        drawn = wait_for(chromium, "document.documentElement.dataset.charts")
        assert drawn == "drawn", chromium.get_log("browser")
        yield chromium
    finally:
        chromium.quit()


def show(browser: Any, *, width: int, scheme: str) -> None:
    """Sets the width of the screen, in CSS pixels, and what the user prefers: light or dark."""
    screen = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    preference = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", preference)


def wait_for(browser: Any, expression: str) -> Any:
    """The expression's value, once it is one."""
    return browser.execute_async_script(
        "const done = arguments[0];"
        f"const look = () => {{ const value = {expression}; value ? done(value) : setTimeout(look, 50); }}; look();"
    )


def test_the_page_in_chromium(browser: Any, page: Path) -> None:
    """One test, for parallel processes of pytest would each start a browser."""
    all_charts_are_drawn_with_their_data(browser)
    nothing_is_wrong_and_nothing_is_fetched(browser, page)
    text_stays_text(browser)
    the_output_opens_at_its_newest_line(browser)
    the_page_runs_no_script_but_its_own(browser)
    a_phone_shows_it_without_scrolling_sideways_and_dark_where_that_is_preferred(browser)


def all_charts_are_drawn_with_their_data(browser: Any) -> None:
    counts = browser.execute_script(
        "const count = (plot, what) => plot.querySelectorAll(what).length;"
        "return [...document.querySelectorAll('[data-figure]')].map((plot) => ["
        "count(plot, 'svg.main-svg'), count(plot, '.js-line[d], .points path[d], .heatmaplayer image')])"
    )
    assert len(counts) == 9  # the timeline; loss, accuracy, images/s, learning rate; two curves and two heat maps
    assert all(svgs > 0 and shapes > 0 for svgs, shapes in counts), counts


def nothing_is_wrong_and_nothing_is_fetched(browser: Any, page: Path) -> None:
    assert browser.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    requests = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    assert [url for url in requests if not url.startswith("data:")] == [page.as_uri()]


def the_output_opens_at_its_newest_line(browser: Any) -> None:
    past_the_end, overflow = browser.execute_script(
        "document.querySelectorAll('details').forEach((each) => { each.open = true; });"
        "const box = document.querySelector('.log'), text = box.firstElementChild;"
        "const bottom = (it) => it.getBoundingClientRect().bottom;"
        "return [bottom(text) - bottom(box), text.offsetHeight - box.clientHeight];"
    )
    assert overflow > 0  # it does not fit
    assert past_the_end <= 0


def text_stays_text(browser: Any) -> None:
    assert browser.execute_script("return window.owned === undefined && document.querySelectorAll('img').length === 0")
    shown = browser.execute_script("return document.body.textContent")
    assert shown.count(HOSTILE) >= 4  # the override, the metric's name and value, the line of output


def the_page_runs_no_script_but_its_own(browser: Any) -> None:
    browser.execute_script(
        "const script = document.createElement('script'); script.textContent = 'window.owned = 1';"
        "document.body.append(script); script.remove()"
    )
    assert browser.execute_script("return window.owned === undefined")
    assert "Content Security Policy" in browser.get_log("browser")[0]["message"]


def a_phone_shows_it_without_scrolling_sideways_and_dark_where_that_is_preferred(browser: Any) -> None:
    ink = "getComputedStyle(document.querySelector('[data-figure] .xtick text')).fill"
    light = browser.execute_script(f"return {ink}")
    show(browser, width=PHONE, scheme="dark")
    browser.execute_script("document.querySelectorAll('details').forEach(each => { each.open = true })")
    wait_for(browser, f"{ink} !== '{light}'")
    wait_for(browser, f"[...document.querySelectorAll('svg.main-svg')].every(svg => svg.clientWidth < {PHONE})")
    assert browser.execute_script("return document.documentElement.scrollWidth") == PHONE
    paper = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert max(int(part) for part in paper.removeprefix("rgb(").rstrip(")").split(",")) < 64
