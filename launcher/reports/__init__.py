"""Makes the report page: one HTML file about a run, or several side by side, which needs no network.

All text from a run directory is escaped, such as host names and log lines. The page contains plotly's JavaScript. Its
content security policy allows only the page's own scripts, and no requests.

- `collect`: a run directory -> RunData; the only part that reads files
- `comparison`: the page of one run, or of several side by side: which sections, differences of configs
- `sections`: the sections about one run, and the facts above them
- `timeline`: what is a span or a moment of the timeline, from journal and events; the table of attempts
- `curves`: curves of a training, from its events
- `ranks`: how long the steps of each rank took
- `figures`: timeline and curves as figures for plotly: colours, axes, legends
- `sweep`: the page of a sweep: table, parallel coordinates, the search
- `fabric`: results of benchmarks: reading, pairs, differences
- `fabric_figures`: their figures
- `fabric_sections`: their section
- `parts`: the types Page, Section, Table, Code
- `words`: numbers, durations, rates and overrides as text; placeholders for secrets
- `page`: Page -> one HTML file (page.html.j2, page.css, page.js, plotly)
"""
