"""Opens the pages of the built site in a browser, and reports what a reader would meet.

    mkdocs build --strict
    pip install playwright
    python docs/browse.py site --chromium /usr/bin/chromium --shots shots

Every page is opened in light and in dark mode, 1,400 and 400 pixels wide. The script
counts errors in the console, requests to other hosts, files that are missing, pictures
that do not load and pages that are wider than the window, and exits with 1 if there is
any. `--shots` saves pictures of the pages named by `--page`.
"""

import argparse
import functools
import http.server
import sys
import threading
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTHS, SCHEMES = (1400, 400), ("light", "dark")
PICTURES = "[...document.images].filter(i => !i.complete || !i.naturalWidth).length"
OVERFLOW = "document.documentElement.scrollWidth > window.innerWidth + 1"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the site as a host would, with its page for what does not exist."""

    def log_message(self, *args) -> None:
        """Say nothing."""

    def send_error(self, code, message=None, explain=None) -> None:
        """Send the page of the site."""
        body = (Path(self.directory) / "404.html").read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(body)


def serve(site: Path) -> str:
    """Serve the site in the background; return its address."""
    handler = functools.partial(Quiet, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/"


def pages_of(site: Path) -> list[str]:
    """Return the addresses of all pages, and one that does not exist."""
    found = sorted(p.parent.relative_to(site).as_posix() for p in site.rglob("*.html"))
    names = {name.removeprefix(".") for name in found if "assets" not in name}
    return [f"{name}/" if name else "" for name in sorted(names)] + ["nowhere/"]


def open_page(context, home: str, name: str, shot: Path | None) -> list[str]:
    """Open a page; return what is wrong with it."""
    wrong, page = [], context.new_page()

    def requested(request) -> None:
        if not request.url.startswith((home, "data:", "blob:")):
            wrong.append(f"request to {request.url}")

    def answered(response) -> None:
        if response.status >= 400 and name != "nowhere/":
            wrong.append(f"{response.status} {response.url}")

    def logged(message) -> None:
        if message.type == "error" and name != "nowhere/":
            wrong.append(f"console: {message.text}")

    page.on("request", requested)
    page.on("response", answered)
    page.on("console", logged)
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.goto(home + name, wait_until="networkidle")
    if missing := page.evaluate(PICTURES):
        wrong.append(f"{missing} pictures missing")
    if page.evaluate(OVERFLOW):
        wrong.append("wider than the window")
    if shot is not None:
        page.screenshot(path=shot, full_page=True)
    page.close()
    return wrong


def main() -> int:
    """Open every page; print and count what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("site", type=Path, help="folder that mkdocs wrote")
    parser.add_argument("--chromium", help="an installed browser")
    parser.add_argument("--shots", type=Path, help="folder for pictures")
    parser.add_argument("--page", nargs="*", help="only these, such as which/")
    options = parser.parse_args()
    home, names = serve(options.site), pages_of(options.site)
    if options.page is not None:
        names = [name for name in names if name in options.page]
    count = total = 0
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium)
        for width in WIDTHS:
            for scheme in SCHEMES:
                size = {"width": width, "height": 900}
                context = browser.new_context(viewport=size, color_scheme=scheme)
                for name in names:
                    shot = None
                    if options.shots is not None:
                        file = name.strip("/").replace("/", "-") or "home"
                        shot = options.shots / f"{file}-{width}-{scheme}.png"
                    for problem in open_page(context, home, name, shot):
                        print(f"{name or 'home'} ({width}, {scheme}): {problem}")
                        total += 1
                    count += 1
                context.close()
        browser.close()
    print(f"{len(names)} pages, opened {count} times: {total} problems")
    return int(total > 0)


if __name__ == "__main__":
    sys.exit(main())
