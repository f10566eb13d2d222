"""The report page: one HTML file that shows a run, or several side by side, without a network.

    collect.py            a run directory -> RunData; the only part that reads files
    timeline.py curves.py fabric.py    events and results -> spans, curves, differences; pure
    figures.py fabric_figures.py       those -> figures for plotly, as plain dicts
    sections.py fabric_sections.py comparison.py sweep.py    RunData -> a page of sections
    page.py page.html.j2 page.css page.js    sections -> HTML

Everything from a run directory is text to be escaped: names of hosts and log lines included. The page holds plotly's
JavaScript, and a content security policy under which only the page's own scripts run and nothing can be fetched.
"""
