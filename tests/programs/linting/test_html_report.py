"""The page: escaped, without requests, and used in a browser where there is one."""

import dataclasses
import html.parser
import re
import shutil
import subprocess

import pytest

from keras_bandgnn.programs.linting.formats import Run
from keras_bandgnn.programs.linting.html_report import page
from tests.programs.linting.samples import result

TEXT = """\
x = "</script><script>document.title = 'no'</script>" + bad_a  # <b>&amp;
y = '<img src="http://example.org/x.png" onerror="document.title = 1">' + odd_b
\x1b[31m = bad_c
"""
NAME = "</option></select><script>document.title='no'</script>.py"
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def run(*names) -> Run:
    results = [result(TEXT, name) for name in names]
    return Run(results, [("broken.py", "no")], len(results), "<model>", 0.5)


class Elements(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.text = [], ""

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data):
        self.text += data


def elements(text) -> Elements:
    parser = Elements()
    parser.feed(text)
    return parser


def test_everything_is_escaped():
    found = elements(page(run(NAME, "b.py")))
    tags = [tag for tag, _ in found.tags]
    assert tags.count("script") == 1 and not {"img", "b"} & set(tags)
    assert tags.count("article") == 6 and tags.count("option") == 3
    assert 'x = "</script><script>' in found.text and NAME in found.text
    assert "\x1b" not in found.text and "\\x1b[31m" in found.text
    assert not any(name in ("src", "href") for _, a in found.tags for name in a)
    assert "<mark>bad_a</mark>" in page(run("a.py"))


def test_most_confident_first():
    shares = re.findall(r'data-confidence="([\d.]+)"', page(run("a.py", "b.py")))
    assert shares == ["0.999"] * 4 + ["0.8"] * 2


def test_long_lines_and_no_findings():
    long = "x = '" + "y" * 100_000 + "' + bad_a\n"
    assert len(page(Run([result(long)], [], 1, "m", 0.5))) < 20_000
    empty = page(Run([], [], 3, "m", 0.5))
    assert "0 findings in 3 files" in empty and "<article" not in empty


def test_cells_of_a_notebook():
    found = result("x = 1\ny = bad_a\nz = 3")
    code = dataclasses.replace(found.code, cells=((1, 3), (2, 4), (3, 6)))
    finding = dataclasses.replace(found.findings[0], cell=4, line=1)
    text = page(Run([dataclasses.replace(found, code=code, findings=(finding,))],
                    [], 1, "m", 0.5))  # fmt: skip
    assert text.count("<i>") == 1 and "cell 4:1:5" in text


# Sets the filters, and writes what is then shown into the page.
PROBE = """
<script>
const shown = () => articles.filter(a => !a.hidden).length;
const counts = [shown()];
file.value = "1"; file.dispatchEvent(new Event("change")); counts.push(shown());
file.value = ""; file.dispatchEvent(new Event("change"));
least.value = 250; least.dispatchEvent(new Event("input")); counts.push(shown());
least.value = 0; least.dispatchEvent(new Event("input"));
document.body.dataset.probe = JSON.stringify([
  ...counts, document.documentElement.scrollWidth <= window.innerWidth,
  performance.getEntriesByType("resource").length, document.title]);
</script></body>
"""


@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
@pytest.mark.parametrize("width", [390, 1280])
def test_in_a_browser(width, tmp_path):
    file = tmp_path / "page.html"
    file.write_text(page(run(NAME, "b" * 90 + ".py")).replace("</body>", PROBE))
    # A window is not narrower than 500 pixels; a frame is.
    frame = tmp_path / "frame.html"
    frame.write_text(
        f'<body><iframe src="page.html" width="{width}" height="900"></iframe><script>'
        "onload = () => document.body.dataset.probe = "
        "document.querySelector('iframe').contentDocument.body.dataset.probe"
        "</script>"
    )
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    options += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'u'}"]
    done = subprocess.run(
        [BROWSER, *options, "--virtual-time-budget=5000", frame.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
    )
    (body,) = [a for tag, a in elements(done.stdout).tags if tag == "body"]
    assert body["data-probe"] == '[6,3,4,true,0,"6 findings in 2 files"]'
