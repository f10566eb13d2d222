"""Makes the report page: one HTML file about a run, or several side by side, which needs no network.

    collect.py                         a run directory -> RunData; the only part that reads files
    timeline.py curves.py fabric.py    events and results -> spans, curves, differences; pure
    figures.py fabric_figures.py       spans, curves, differences -> figures for plotly, as plain dicts
    sections.py fabric_sections.py comparison.py sweep.py    RunData -> a page of sections
    page.py page.html.j2 page.css page.js    sections -> HTML

All text from a run directory is escaped, such as host names and log lines. The page contains plotly's JavaScript. Its
content security policy allows only the page's own scripts, and no requests.
"""
