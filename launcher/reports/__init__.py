"""Makes the report page of the command `report`: one HTML file about a run or a sweep.

The page needs no network: it contains plotly's JavaScript, and its content security policy allows only the page's own
scripts, and no requests. All text from a run directory, such as host names and log lines, is escaped.

- `collect`: reads a run directory into RunData: attempts, metrics, results, the spans and moments of its timeline, and
  results of benchmarks (`p2p`, `collective`) as curves; of a sweep all results, and the events of the best points; the
  only module that reads runs
- `figures`: all figures, and the words for numbers
- `page`: what the page of a run or a sweep shows: its sections and tables; fills `page.html.j2` with them
"""
