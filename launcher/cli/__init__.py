"""The command line, with one module for each command. It may import every other package.

A module with the name of a command has the command's `run` function; `commands` names the others.

- `commands`: the table of commands with their one-line help; parser and dispatch
- `options`: options, arguments and `--help` of each command
- `submit`: `KEY=VALUE ...`: composes the config, then submits the run or shows it (`dry_run`); `resume`: submits
  another attempt of a run
- `multirun`: `-m KEY=A,B`: submits the points of a sweep or search
- `run`: `run SCRIPT`: turns a script and its arguments into overrides
- `confirm`: prints the cost of a submission, and asks for confirmation
- `follow`: follows a run to its end: output, progress, Ctrl-C
- `remote`: which commands and submissions go to clusters behind ssh
- `remote_status`: asks all clusters behind ssh for the rows of `status`
- `far`: the side of such a cluster: runs one command for another machine
- `status`: chooses between an empty list and `status_view`
- `status_rows`: the rows of `status`, and the table that they make
- `status_view`: what `status` prints: table, notes, details of named runs
- `watch`: `status --watch`: the updated table, and its lines without a terminal
- `logs`: prints and follows output; how often files and states are polled
- `wait`: follows a run or sweep, and exits with its code
- `explain`: `why`, `post-mortem`: layout of the explanation why a run waits, or ended; its JSON
- `cleanup`: `cancel`: cancels runs, sweeps and orphaned jobs; `prune`: lists and removes old runs
- `attach`: a shell, stacks or the debugger of a running rank
- `checkpoint`: lists, inspects, verifies, extracts and adopts checkpoints
- `sweep`: which options go with which action of `sweep`, and their dispatch
- `sweep_status`: `sweep status`: progress, points that run or have failed
- `sweep_results`: `sweep results`, `sweep wait` and `sweep logs`: follows a sweep, and shows what its points gave
- `sweep_change`: `sweep rerun`, `cancel`, `throttle`
- `report`: `report`: writes an HTML page about a run, several runs side by side, or a sweep, and opens it
- `site`: lists, shows, writes and checks profiles of sites; `template`: prints a job script template to start from
- `doctor`: runs the checks of this machine, and prints their findings
- `topology`: `topology`: the hardware of this node, and which part of it each rank gets
- `files_for_nodes`: `data`: lists and downloads data sets; `env`: packs a venv into an archive
- `help`: `help`, `--help`, `--version`: general help, and the list of keys
- `complete`: installs or prints the completion script of a shell; computes the completions of the word at the cursor
- `find`: finds the runs and sweeps that a command line names
- `text`: text that several commands print: tables, the plan, why and how a run ended
- `progress`: all progress bars, and progress lines without a terminal
- `screen`: removes terminal escape sequences from all that commands print
"""
