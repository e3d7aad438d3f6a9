"""A report as one HTML file that needs nothing else: no script, no network, no fonts."""

from __future__ import annotations

import re
from html import escape

from paceline.workbench.report.blocks import (
    Block,
    Code,
    Definitions,
    Figure,
    Report,
    Table,
    Text,
    Verdict,
)

SERIES = (
    ("#5f6773", "#a3acb9"),
    ("#0b63b8", "#6fb3f2"),
    ("#b55a00", "#f0a24a"),
    ("#0a7d5a", "#4ccba0"),
    ("#a83279", "#ee8fc4"),
    ("#6a4fc0", "#b3a0f5"),
    ("#8a6d00", "#dcc04a"),
    ("#b3261e", "#f28b82"),
)
"""The colours of plotted series, on a light and on a dark page."""

COLOURS = {
    "ink": ("#1b1f24", "#e6e9ee"),
    "muted": ("#59636e", "#a0a8b3"),
    "line": ("#d5dae0", "#3a414b"),
    "page": ("#ffffff", "#14171b"),
    "panel": ("#f5f7f9", "#1d2127"),
    "good": ("#0a6b3d", "#5fd39a"),
    "warning": ("#855900", "#e9b949"),
    "bad": ("#a8201a", "#ff8a80"),
    "neutral": ("#3d4651", "#b9c1cc"),
    **{f"s{number}": pair for number, pair in enumerate(SERIES)},
}
"""By name of the CSS variable, its light and its dark value."""


def _variables(place: int) -> str:
    return "".join(f"--{name}:{pair[place]};" for name, pair in COLOURS.items())


_STYLE = (
    f":root{{color-scheme:light dark;{_variables(0)}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_variables(1)}}}}}"
    """
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);
 font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;overflow-wrap:break-word}
main{max-width:74rem;margin:0 auto;padding:1rem}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0}
h2{font-size:1.2rem;margin:2.2rem 0 .6rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}
p{margin:.6rem 0;max-width:46rem}
.lead{color:var(--muted)}
code,pre{font:.88em/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
code{background:var(--panel);padding:.1em .3em;border-radius:4px}
pre{background:var(--panel);padding:.7rem;border-radius:6px;white-space:pre-wrap;
 overflow-wrap:anywhere}
.scroll{overflow-x:auto;margin:.8rem 0}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.9rem}
.caption{color:var(--muted);font-size:.9rem;margin:.8rem 0 -.4rem}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{font-weight:600;color:var(--muted);vertical-align:bottom}
.name{text-align:left;white-space:normal;overflow-wrap:anywhere;min-width:6rem;max-width:22rem}
@media (max-width:40rem){.name{max-width:8.5rem}th,td{padding:.3rem .45rem}}
tbody tr:hover{background:var(--panel)}
.figures{display:grid;gap:1.2rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr))}
figure{margin:0;padding:.7rem;background:var(--panel);border-radius:8px;min-width:0}
figure svg{display:block;width:100%;height:auto;max-width:38rem;margin:0 auto}
figcaption{font-size:.9rem;margin-bottom:.4rem}
figcaption b{display:block}
figcaption span{color:var(--muted)}
.verdict{margin:.8rem 0;padding:.6rem .9rem;border-left:5px solid;background:var(--panel);
 border-radius:0 6px 6px 0;max-width:60rem}
.verdict b{text-transform:uppercase;letter-spacing:.04em;margin-right:.5em}
.good{border-color:var(--good)}.good b{color:var(--good)}
.warning{border-color:var(--warning)}.warning b{color:var(--warning)}
.bad{border-color:var(--bad)}.bad b{color:var(--bad)}
.neutral{border-color:var(--neutral)}.neutral b{color:var(--neutral)}
dt{font-weight:600;margin-top:.7rem}
dd{margin:0;color:var(--muted);max-width:46rem}
@media print{figure,.verdict,tr{break-inside:avoid}}
"""
)


def to_html(report: Report) -> str:
    """The report as one file. It adapts to light or dark mode and to any width."""
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="generator" content="Paceline">',
        # Without it, a browser asks for a favicon next to the file.
        '<link rel="icon" href="data:,">',
        f"<title>{escape(report.title)}</title>",
        f"<style>{_STYLE}</style>\n</head>\n<body>\n<main>",
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="lead">{_inline(report.lead)}</p>',
    ]
    for section in report.sections:
        parts.append(f"<section>\n<h2>{escape(section.title)}</h2>")
        for run in _runs(section.blocks):
            body = "\n".join(map(_block, run))
            parts.append(
                f'<div class="figures">\n{body}\n</div>' if isinstance(run[0], Figure) else body
            )
        parts.append("</section>")
    parts.append("</main>\n</body>\n</html>\n")
    return "\n".join(parts)


def _runs(blocks: tuple[Block, ...]) -> list[list[Block]]:
    """Group neighbouring figures, to be shown side by side; other blocks stay single."""
    runs: list[list[Block]] = []
    for block in blocks:
        if runs and isinstance(block, Figure) and isinstance(runs[-1][0], Figure):
            runs[-1].append(block)
        else:
            runs.append([block])
    return runs


def _block(block: Block) -> str:
    match block:
        case Text(text):
            return f"<p>{_inline(text)}</p>"
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case Verdict(status, word, text):
            return f'<div class="verdict {status}"><b>{escape(word)}</b>{_inline(text)}</div>'
        case Figure(title, svg, text):
            caption = f"<b>{escape(title)}</b><span>{_inline(text)}</span>"
            return f"<figure><figcaption>{caption}</figcaption>\n{svg}\n</figure>"
        case Definitions(entries):
            inner = "".join(f"<dt>{_inline(a)}</dt><dd>{_inline(b)}</dd>" for a, b in entries)
            return f"<dl>{inner}</dl>"
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        inner = "".join(
            f'<{tag} class="name">{_inline(cell)}</{tag}>'
            if place < table.num_names
            else f"<{tag}>{_inline(cell)}</{tag}>"
            for place, cell in enumerate(cells)
        )
        return f"<tr>{inner}</tr>"

    # Not a caption element: that would scroll away with a table that is wider than the page.
    caption = f'<p class="caption">{_inline(table.caption)}</p>' if table.caption else ""
    body = "\n".join(row(cells, "td") for cells in table.rows)
    return (
        f'{caption}<div class="scroll"><table><thead>{row(table.headers, "th")}</thead>\n'
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def _inline(text: str) -> str:
    """Escaped, with code between backticks.

    >>> _inline("a `b<c`")
    'a <code>b&lt;c</code>'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
