"""Hooks of mkdocs: tutorials, the menu of classes, links, formulas, the changelog.

The tutorials are Markdown with Python, as every page. Building the site runs each in a
kernel of its own, from top to bottom, and shows what its cells print and draw. The same
cells, without outputs, become a notebook to download. An error in a cell ends the
build. Where no backend is installed, or with TUTORIALS=0, the pages show the code only.
With a repository on GitHub pages get a badge that opens the notebook in Colab, from the
branch of the site, `NOTEBOOKS_BRANCH` or gh-pages. While you write pages,
`TUTORIAL_CACHE=FOLDER mkdocs serve` runs a tutorial again only if it changes.

The pages that mike publishes have a menu of versions.

Formulas, `$...$` or `$$...$$`, become MathML, which browsers typeset themselves.
"""

import functools
import hashlib
import html
import importlib.util
import logging
import os
import re
import runpy
import tempfile
from pathlib import Path

from latex2mathml.converter import convert
from mkdocs.structure.files import File
from nbclient import NotebookClient
from nbformat import reads, v4, writes

FOLDER = "tutorials/"
# The second cell of a notebook. Colab has the backends.
_INSTALL = (
    "import sys\n\nif 'google.colab' in sys.modules:\n"
    "    %pip install -q 'keras-bandgnn[chem,plot,tuner]'"
)
_log = logging.getLogger("mkdocs.hooks.tutorials")


def cells_of(text: str) -> list:
    """Return the cells of a page: those of Python, and the Markdown between them."""
    parts = re.split(r"^```python\n(.*?)^```\n?", text, flags=re.M | re.S)
    makers = (v4.new_markdown_cell, v4.new_code_cell)
    return [makers[i % 2](p.strip()) for i, p in enumerate(parts) if p.strip()]


@functools.cache
def executed(text: str) -> list:
    """Return the cells of a page with their outputs."""
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    folder = os.environ.get("TUTORIAL_CACHE")
    file = Path(folder, f"{digest}.ipynb") if folder else None
    if file and file.exists():
        return reads(file.read_text(), as_version=4).cells
    inline = v4.new_code_cell("%matplotlib inline")  # figures are outputs
    notebook = v4.new_notebook(cells=[inline, *cells_of(text)])
    with tempfile.TemporaryDirectory() as work:
        where = {"metadata": {"path": work}}
        NotebookClient(notebook, timeout=600, resources=where).execute()
    del notebook.cells[0]
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(writes(notebook))
    return notebook.cells


def outputs_of(cell, name: str) -> str:
    """Return what a cell printed and drew, as Markdown."""
    shown, printed = "", ""
    for output in cell.get("outputs", ()):
        data = output.get("data", {})
        if output.get("name") == "stderr":
            _log.debug("%s: %s", name, output.text)
        elif "image/png" in data:
            image = data["image/png"].replace("\n", "")
            shown += f"\n![What the code above draws](data:image/png;base64,{image})\n"
        else:
            value = data.get("text/plain", "") + "\n"
            # An object without a description of its own says nothing to readers.
            printed += output.get("text") or re.sub(r"^<.* at 0x.*>$", "", value)
    if printed.strip():
        # Without the colours of a terminal, and with what a progress bar ended with.
        printed = re.sub(r"\x1b\[[\d;]*m", "", printed)
        printed = re.sub(r"^.*[\r\x08](?=.)", "", printed, flags=re.M).strip("\n")
        shown = f"\n``` {{ .text .output }}\n{printed}\n```\n{shown}"
    return shown


def with_classes(entry, folder: Path):
    """Return an entry of the menu, with the pages of the classes of a package."""
    if isinstance(entry, list):
        return [with_classes(item, folder) for item in entry]
    if not isinstance(entry, dict):
        return entry
    ((title, page),) = entry.items()
    if not isinstance(page, str):
        return {title: with_classes(page, folder)}
    if not page.startswith("api/") or not (folder / page).with_suffix("").is_dir():
        return entry
    groups = {}
    for line in (folder / page).read_text().splitlines():
        if line.startswith("## "):
            group = groups.setdefault(line.removeprefix("## "), [])
        elif match := re.match(r"\| \[`(\w+)`\]\((.*?)\)", line):
            group.append({match[1]: f"api/{match[2]}"})
    return {title: [page, *({name: pages} for name, pages in groups.items() if pages)]}


def on_config(config):
    """Complete the menu, and choose the backend of the tutorials."""
    config.nav = with_classes(config.nav, Path(config.docs_dir))
    backends = ("torch", "jax", "tensorflow")
    installed = [name for name in backends if importlib.util.find_spec(name)]
    if os.environ.get("TUTORIALS") == "0":
        installed = []
    elif installed:
        os.environ.setdefault("KERAS_BACKEND", installed[0])
    else:
        _log.info("No backend is installed: the tutorials are shown without outputs")
    config.extra["executed"] = bool(installed)
    if "MIKE_DOCS_VERSION" in os.environ:
        config.extra["version"] = {"provider": "mike"}


def on_files(files, config):
    """Add the notebook of each tutorial."""
    for file in [f for f in files.documentation_pages() if is_tutorial(f)]:
        # Other pages are not next to a notebook that was downloaded.
        text = re.sub(
            r"(?<!!)\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", file.content_string
        )
        kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
        notebook = v4.new_notebook(cells=cells_of(text))
        notebook.cells.insert(1, v4.new_code_cell(_INSTALL))
        notebook.metadata["kernelspec"] = kernel
        for number, cell in enumerate(notebook.cells):
            cell.id = f"cell-{number}"  # the same in every build
        path = file.src_uri.replace(".md", ".ipynb")
        files.append(File.generated(config, path, content=writes(notebook)))
    return files


def is_tutorial(file) -> bool:
    """Return whether a file is a page that is run."""
    return file.src_uri.startswith(FOLDER) and not file.src_uri.endswith("index.md")


def pictures(files) -> str:
    """Return the pictures of all tutorials, each with a link to its page."""
    shown = ""
    for file in filter(is_tutorial, files.documentation_pages()):
        text = file.content_string
        title = text.partition("\n")[0].removeprefix("# ")
        for cell in executed(text):
            for image in re.findall(r"!\[.*\)", outputs_of(cell, file.src_uri)):
                shown += f"<figure markdown>\n[{image}]({file.src_uri})\n"
                shown += f"<figcaption>{title}</figcaption>\n</figure>\n\n"
    return shown


def changelog(folder: Path) -> str:
    """Return CHANGELOG.md with links as of a page in docs/."""
    text = (folder / "CHANGELOG.md").read_text("utf-8")
    text = re.sub(r"^<!-- --8<-- .*\n", "", text, flags=re.M)
    return text.replace("](docs/", "](")


# Pages that name classes in passing.
_IN_PASSING = tuple(
    "api architecture benchmarks changelog cheat-sheet choices coming-from comparison "
    "gallery index keras-io public-names results studies/ tutorials/ upgrading "
    "which".split()
)
CLASS = re.compile(r"api/(layers|models)/(\w+)\.md")
# What has no links: code, headings, links, formulas and HTML.
_PLAIN = r"^(`{3,}.*?^`{3,}|#.*?)$|!?\[[^\]]*\]\([^)]*\)|\$\$.*?\$\$|<[^>]*>|``.*?``"


def with_links(markdown: str, uri: str, files) -> str:
    """Return a page that links the first mention of each class to its page."""
    pages = {}
    for file in files.documentation_pages():
        if match := CLASS.fullmatch(file.src_uri):
            pages[match[2]] = file.src_uri
    up = "../" * uri.count("/")

    def mention(match) -> str:
        target = pages.pop(match["name"], None) if match["name"] else None
        return f"[`{match['name']}`]({up}{target})" if target else match[0]

    return re.sub(_PLAIN + r"|`(?P<name>\w+)`", mention, markdown, flags=re.M | re.S)


def with_models(markdown: str, folder: Path, up: str) -> str:
    """Return a page with figures and equations where it names backbones for them."""
    section = runpy.run_path(str(folder / "backbones.py"))["section"]

    def models(match) -> str:
        parts = (
            f"<div markdown>\n**{name}**\n\n{section(name, up)}\n</div>\n"
            for name in match[1].split()
        )
        return f'<div class="grid models" markdown>\n{"".join(parts)}</div>'

    return re.sub(r"<!-- models: (.*?) -->", models, markdown)


def guides(name: str, files) -> str:
    """Return links to the pages that say most of a class."""
    counts = []
    for file in files.documentation_pages():
        if not file.src_uri.startswith(_IN_PASSING):
            text = file.content_string
            if count := len(re.findall(rf"\b{name}\b", text)):
                title = re.search(r"^# (.*)", text, re.M)[1]
                counts.append((-count, f"[{title}](../../{file.src_uri})"))
    links = ", ".join(link for _, link in sorted(counts)[:4])
    return f"\nGuides: {links}.\n" if links else ""


def badge(name: str, repository: str | None) -> str:
    """Return the badge that opens a notebook in Colab, for repositories on GitHub."""
    match = re.fullmatch(r"https://github\.com/([^/]+/[^/]+?)/?", repository or "")
    if not match:
        return ""
    branch = os.environ.get("NOTEBOOKS_BRANCH", "gh-pages")
    place = f"{match[1]}/blob/{branch}/{FOLDER}{name}.ipynb"
    image = "![Open in Colab](../figures/colab-badge.svg)"
    return f" [{image}](https://colab.research.google.com/github/{place})"


def tutorial(markdown: str, name: str, config) -> str:
    """Return the page of a tutorial with outputs and a link to its notebook."""
    run = config.extra["executed"]
    shown = []
    for cell in executed(markdown) if run else cells_of(markdown):
        if cell.cell_type == "markdown":
            shown.append(f"{cell.source}\n")
        else:
            code = f"```python\n{cell.source}\n```\n"
            shown.append(code + (outputs_of(cell, name) if run else ""))
    title, _, rest = "\n".join(shown).partition("\n")
    link = f"[Download as a notebook]({name}.ipynb){{ .notebook download }}"
    return f"{title}\n\n{link}{badge(name, config.repo_url)}\n{rest}"


def on_page_markdown(markdown, page, config, files):
    """Insert links, figures of models, the version, the changelog, and outputs."""
    uri, folder = page.file.src_uri, Path(config.docs_dir)
    if uri == "changelog.md":
        return changelog(folder.parent)
    if match := CLASS.fullmatch(uri):
        head, mark, reference = markdown.partition("\n::: ")
        return head + guides(match[2], files) + mark + reference
    if uri.startswith(("api", "public-names")):
        return markdown
    if is_tutorial(page.file):
        name = uri.removeprefix(FOLDER).removesuffix(".md")
        markdown = tutorial(markdown, name, config)
    elif uri == "gallery.md" and config.extra["executed"]:
        markdown = markdown.replace("<!-- tutorials -->", pictures(files))
    elif uri == "index.md":
        source = folder.parent / "keras_bandgnn" / "version.py"
        version = re.search(r'version__ = "(.*?)"', source.read_text())[1]
        markdown = markdown.replace("<!-- version -->", f"Version {version}.")
    markdown = with_models(markdown, folder, "../" * uri.count("/"))
    return with_links(markdown, uri, files)


def on_page_content(content, page, config, files):
    """Typeset the formulas of a page."""

    def typeset(match) -> str:
        display = "block" if match["tag"] == "div" else "inline"
        return convert(html.unescape(match["tex"].strip()), display=display)

    formula = r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<tex>.*?)\\[)\]]</\1>'
    return re.sub(formula, typeset, content, flags=re.S)
