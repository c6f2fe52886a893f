"""Findings as a page: one file that requests nothing from elsewhere."""

import html

from keras_bandgnn.programs.linting.finding import FileFindings, Finding
from keras_bandgnn.programs.linting.formats import Run

# Lines of code above and below a finding.
_AROUND = 4
_MAX_COLUMNS = 400

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; --page: #f6f7f9; --card: #fff; --text: #1c2024;
  --weak: #5b6570; --line: #d9dee4; --mark: #ffd9a8; --bar: #3f51b5; --used: #c2410c; }}
@media (prefers-color-scheme: dark) {{ :root {{ --page: #14171a; --card: #1d2126;
  --text: #e6e9ec; --weak: #9aa5b1; --line: #343b43; --mark: #6b3d08; --bar: #8c9eff;
  --used: #fb923c; }} }}
* {{ box-sizing: border-box; }}
body {{ margin: 0 auto; max-width: 75rem; padding: 1rem; background: var(--page);
  color: var(--text); font: 16px/1.5 system-ui, sans-serif; }}
h1 {{ font-size: 1.5rem; margin: 0.5rem 0; }}
h2 {{ font-size: 1rem; margin: 0; overflow-wrap: anywhere; }}
p, .weak {{ color: var(--weak); margin: 0.25rem 0; }}
form {{ display: flex; flex-wrap: wrap; gap: 0.75rem 1.5rem; position: sticky; top: 0;
  background: var(--page); padding: 0.75rem 0; border-bottom: 1px solid var(--line); }}
label {{ display: flex; align-items: center; gap: 0.5rem; max-width: 100%; }}
select {{ max-width: 100%; min-width: 0; font: inherit; }}
output {{ min-width: 4.5em; font-variant-numeric: tabular-nums; }}
article {{ background: var(--card); border: 1px solid var(--line); border-radius: 8px;
  margin: 1rem 0; padding: 1rem; display: grid; gap: 0.75rem 1.5rem;
  grid-template-columns: minmax(0, 2fr) minmax(0, 1fr); }}
article[hidden] {{ display: none; }}
header {{ grid-column: 1 / -1; }}
pre {{ margin: 0; overflow-x: auto; font: 0.85rem/1.5 ui-monospace, monospace;
  border: 1px solid var(--line); border-radius: 4px; padding: 0.5rem 0; }}
pre span {{ display: inline-block; min-width: 100%; padding: 0 0.75rem; }}
pre i {{ display: inline-block; width: 3.5em; color: var(--weak); font-style: normal;
  user-select: none; }}
pre .hit {{ background: color-mix(in srgb, var(--mark) 30%, transparent); }}
mark {{ background: var(--mark); color: inherit; border-radius: 3px;
  font-weight: bold; }}
table {{ width: 100%; border-collapse: collapse; font-size: 0.9rem;
  align-self: start; }}
th {{ text-align: left; font-weight: normal; overflow-wrap: anywhere;
  padding-right: 0.5em; font-family: ui-monospace, monospace; }}
th.used {{ color: var(--used); }}
td {{ width: 45%; }}
td + td {{ width: 4.5em; text-align: right; font-variant-numeric: tabular-nums; }}
.bar {{ display: block; height: 0.7em; border-radius: 3px; background: var(--bar);
  min-width: 1px; }}
@media (max-width: 45rem) {{ article {{ grid-template-columns: minmax(0, 1fr); }} }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>Model {model}, confidence of at least {least}. {about}</p>
<form>
<label>File <select id="file"><option value="">all files</option>{options}
</select></label>
<label>Confidence at least <input id="least" type="range" min="0" max="1000" value="0">
<output id="shown"></output></label>
<output id="count" aria-live="polite"></output>
</form>
<main>
{articles}</main>
<script>
"use strict";
const articles = [...document.querySelectorAll("article")];
const file = document.getElementById("file"), least = document.getElementById("least");
const low = Math.min(1, ...articles.map(a => Number(a.dataset.confidence)));
function filter() {{
  // The steps are finer where confidence is higher.
  const p = Number(least.value) === 0 ? 0
    : 1 - (1 - low) * Math.pow(10, -4 * Number(least.value) / 1000);
  let count = 0;
  for (const article of articles) {{
    article.hidden = Number(article.dataset.confidence) < p
      || (file.value !== "" && article.dataset.file !== file.value);
    count += !article.hidden;
  }}
  const say = (id, text) => {{ document.getElementById(id).textContent = text; }};
  say("shown", (100 * Math.max(p, low)).toFixed(2) + " %");
  say("count", count + " of " + articles.length + " shown");
}}
file.addEventListener("change", filter);
least.addEventListener("input", filter);
document.querySelector("form").addEventListener("submit", e => e.preventDefault());
filter();
</script>
</body>
</html>
"""
_ARTICLE = """\
<article data-file="{number}" data-confidence="{confidence!r}">
<header><h2>{place}</h2><div>{message}</div></header>
<pre tabindex="0"><code>{code}</code></pre>
<table><tbody>
{rows}</tbody></table>
</article>
"""
_ROW = """\
<tr><th scope="row"{kind}>{name}</th><td><span class="bar" \
style="width: {width:.1f}%"></span></td><td>{share:.1f} %</td></tr>
"""


def _escaped(text: str) -> str:
    """Escape for HTML; make characters visible that a page cannot hold."""
    text = "".join(
        c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode()
        for c in text
    )
    return html.escape(text)


def page(run: Run) -> str:
    """Return the page, with the most confident findings first."""
    number = {result.code.path: k for k, result in enumerate(run.results)}
    entries = [(finding, r) for r in run.results for finding in r.findings]
    entries.sort(key=lambda item: -item[0].confidence)
    options = "".join(
        f'<option value="{k}">{_escaped(path)}</option>' for path, k in number.items()
    )
    about = "Most confident first."
    if run.errors:
        count = len(run.errors)
        about += f" Not checked: {count} file{'s' * (count > 1)}."
    return _PAGE.format(
        title=_escaped(run.summary),
        model=_escaped(run.model),
        least=f"{100 * run.min_confidence:g} %",
        about=about,
        options=options,
        articles="".join(
            _article(finding, result, number[result.code.path])
            for finding, result in entries
        ),
    )


def _article(finding: Finding, result: FileFindings, number: int) -> str:
    rows = "".join(
        _ROW.format(
            kind=' class="used"' if name == finding.used else "",
            name=_escaped(name),
            width=100 * share,
            share=100 * share,
        )
        for name, share in finding.candidates
    )
    return _ARTICLE.format(
        number=number,
        confidence=finding.confidence,
        place=_escaped(finding.place),
        message=_escaped(finding.message),
        code=_code(finding, result),
        rows=rows,
    )


def _code(finding: Finding, result: FileFindings) -> str:
    code = result.code
    hit = code.line_of(finding.cell, finding.line)
    shown = []
    for line in range(max(1, hit - _AROUND), min(len(code.lines), hit + _AROUND) + 1):
        cell, number = code.place(line)
        if cell != finding.cell:
            continue
        text, kind = code.lines[line - 1], ""
        if line == hit:
            kind = ' class="hit"'
            start, end = finding.column - 1, finding.end_column - 1
            # Long lines, of data, are cut on both sides.
            first = max(0, start - _MAX_COLUMNS)
            before, after = text[first:start], text[end : end + _MAX_COLUMNS]
            inner = f"{_escaped(before)}<mark>{_escaped(text[start:end])}</mark>"
            inner += _escaped(after)
        else:
            inner = _escaped(text[:_MAX_COLUMNS])
        shown.append(f"<span{kind}><i>{number}</i>{inner}</span>")
    return "\n".join(shown)
