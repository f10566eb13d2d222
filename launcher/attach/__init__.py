"""`attach` to a rank of a running job: shells, stacks, the debugger. Both sides are here, login node and compute node.

It may import worker, rendezvous, schedulers, runs and what is below them.

- `connect`: the way to a rank's node: this machine, the options of a step of srun, or the network
- `requests`: requests to agents and their replies, as files of the run directory
- `request_handler`: an agent's replies: stacks, where a rank runs, network access
- `node_session`: the program that is started on a rank's node: the shell, or the relay to a debugger
- `terminal`: this terminal, connected to a shell over the network
- `debugger_prompt`: the prompt of a rank's debugger: editing, completion
"""
