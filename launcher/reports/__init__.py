"""Makes the report page of the command `report`: one HTML file about a run, several runs or a sweep.

The page needs no network: it contains plotly's JavaScript, and its content security policy allows only the page's own
scripts, and no requests. All text from a run directory, such as host names and log lines, is escaped.

- `collect`: reads a run directory into RunData; the only module that reads runs
- `comparison`: the page of one run, or of several side by side: the order of the sections, metrics, different configs
- `sections`: the sections about one run, and the facts above them
- `timeline`: makes the spans and moments of the timeline from the journal and the events; the table of attempts
- `curves`: a training's metrics over steps (loss, throughput), from its events
- `ranks`: the figure of the time that each rank needed for a step
- `figures`: the plotly figures of timelines and trainings: colours, axes, legends
- `sweep`: the page of a sweep: table of points, parallel coordinates, the state of a search
- `fabric`: parses and compares the results of benchmarks of the interconnect (`p2p`, `collective`)
- `fabric_figures`: the plotly figures of benchmark results: curves, bars, heat maps
- `fabric_sections`: the section about a benchmark, and its tables
- `parts`: the data types of a page: Page, Section, Table, Code
- `words`: formats numbers, durations, rates and overrides as text; hides secrets
- `page`: renders a Page as one HTML file (page.html.j2, page.css, page.js, plotly)
"""
