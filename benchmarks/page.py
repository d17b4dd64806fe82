"""How soon the service's page shows something, and whom it asks for it.

    sphereface2 serve MODEL &
    python -m benchmarks.page http://127.0.0.1:8000 [--visits 10]

Debian's chromium opens it again and again, each time as a browser that has never been there.
"""

from __future__ import annotations

import argparse
import shutil
from statistics import median
from urllib.parse import urlsplit

from playwright.sync_api import sync_playwright

PAINTS = "() => performance.getEntriesByType('paint').map(each => [each.name, each.startTime])"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--visits", type=int, default=10)
    given = parser.parse_args()
    chromium = shutil.which("chromium")
    if chromium is None:
        parser.error("there is no chromium; install Debian's package of that name")
    seconds: list[float] = []
    requests: list[str] = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for _ in range(given.visits):
            page = browser.new_page()
            page.on("request", lambda request: requests.append(request.url))
            page.goto(given.url)
            page.get_by_role("heading", level=1).wait_for()
            page.wait_for_load_state("networkidle")
            seconds.append(dict(page.evaluate(PAINTS))["first-contentful-paint"] / 1000)
            page.close()
        browser.close()
    home = urlsplit(given.url).netloc
    foreign = [each for each in requests if urlsplit(each).netloc not in (home, "")]
    print(
        f"first picture: median {median(seconds):.2f} s, {min(seconds):.2f} to {max(seconds):.2f}"
    )
    print(f"requests: {len(requests) // given.visits} per visit, {len(foreign)} to other hosts")


if __name__ == "__main__":
    main()
