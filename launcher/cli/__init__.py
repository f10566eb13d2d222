"""The command line, with one module for each command. It may import every other package.

A module with the name of a command has the command's `run` function; `commands` names the others.

- `commands`: which module a command line calls
- `help`: `help COMMAND`, `COMMAND --help`: the table of commands; options, arguments and text of each; their parser
- `key_help`: `help KEY`, `--help`, `--version`: the general help, and the keys with their defaults
- `submit`: `KEY=VALUE ...`: composes the config, then submits the run or shows it (`dry_run`); `run SCRIPT`: turns a
  script and its arguments into overrides; `resume`: submits another attempt of a run
- `multirun`: `-m KEY=A,B`: submits the points of a sweep or search
- `ssh_forward`: which commands and submissions go to clusters behind ssh; the rows of `status` from there
- `ssh_serve`: the side of such a cluster: runs one command for another machine; the folder that is made of the code
- `status`: the rows of runs and sweeps, and the table that they make: state, steps, time left, checkpoint; details of
  named runs; `--watch`
- `logs`: prints and follows output
- `wait`: `wait` and `sweep wait`: follows a run or sweep to its end: output, progress, Ctrl-C
- `why`: `why`: why a run is in its state, and what would start a pending one sooner; its JSON
- `post_mortem`: `post-mortem`: what is found of an attempt that ended (verdict, traceback, stacks, log lines, files),
  and its layout
- `cancel_and_prune`: cancels runs, sweeps and orphaned jobs (whose run directory is gone); which old runs `prune` may
  remove, and their removal
- `attach`: a shell, the stacks (equal ones as one) or the debugger of running ranks
- `checkpoint`: lists, inspects, verifies and extracts checkpoints
- `sweep`: the actions of `sweep`: progress, points, and what they gave; changes of a sweep
- `report`: `report`: writes an HTML page about a run or a sweep, and opens it
- `site`: lists, shows and writes profiles of sites; `template`: prints a job script template to start from; `data`:
  lists and downloads data sets; `env`: packs a venv into an archive
- `doctor`: what it looks at on this machine: itself, its software, the folder of runs, the scheduler
- `topology`: `topology`: the hardware of this node, and which part of it each rank gets
- `complete`: installs or prints the completion script of a shell; computes the completions of the word at the cursor
- `output`: what several commands print: tables, the plan, why and how a run ended; the question before a submission
- `progress_bars`: all progress bars, and progress lines without a terminal; how commands that follow runs wait for a
  file server
"""
