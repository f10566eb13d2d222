"""Makes the report page of the command `report`: one HTML file about a run, several runs or a sweep.

The page needs no network: it contains plotly's JavaScript, and its content security policy allows only the page's own
scripts, and no requests. All text from a run directory, such as host names and log lines, is escaped.

- `collect`: reads a run directory into RunData, with a training's metrics over steps; the only module that reads runs
- `comparison`: the page of one run, or of several side by side: the order of the sections, metrics, different configs
- `sections`: the sections about one run, the facts above them, and the time that each rank needed for a step
- `timeline`: makes the spans and moments of the timeline from the journal and the events; the table of attempts
- `figures`: the plotly figures of timelines and trainings: colours, axes, legends
- `sweep`: the page of a sweep: table of points, parallel coordinates, the state of a search
- `fabric`: parses and compares the results of benchmarks of the interconnect (`p2p`, `collective`)
- `words`: formats numbers, durations, rates and overrides as text; hides secrets
- `page`: a page: its data types, and the one HTML file that is made of it (page.html.j2, page.css, page.js, plotly)
- `fabric_page`: the section about a benchmark of the interconnect: its figures and tables
"""
