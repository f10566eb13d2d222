"""Makes the report page of the command `report`: one HTML file about a run, several runs or a sweep.

The page needs no network: it contains plotly's JavaScript, and its content security policy allows only the page's own
scripts, and no requests. All text from a run directory, such as host names and log lines, is escaped.

- `collect`: reads a run directory into RunData, with a training's metrics over steps; the only module that reads runs
- `sections`: the sections of the report of a run, and of the comparison of several runs
- `timeline`: what happened when: the spans of a run, and the words and numbers in which reports tell them
- `page`: the page of a report: its figures and its HTML
- `sweep`: the page of a sweep: table of points, parallel coordinates, the state of a search
- `fabric`: parses and compares the results of benchmarks of the interconnect (`p2p`, `collective`)
- `fabric_page`: the section about a benchmark of the interconnect: its figures and tables
"""
