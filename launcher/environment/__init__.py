"""Prepares the environment that ranks run in: the code snapshot, Python, packed archives, containers, secrets.

It may import runs, plan and what is below them.

- `code_files`: the files of the user's code: those of a git repository, or those that were sent from another machine,
  by the list that came with them
- `snapshot`: copies the user's code into the run directory (env.snapshot), and maps paths into the copy
- `archives`: makes archives of environments (`env pack`), checks env.archive at submission, and unpacks it on each node
- `container_command`: checks env.container, makes the script's commands for it, and starts it on a node
- `programs`: checks the user's script, module or function, its environment and trackers at submission; the arguments
  that it gets
- `secrets`: secrets of a run: files of their values, and records without them
"""
