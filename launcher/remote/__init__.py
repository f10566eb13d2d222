"""Clusters behind ssh: this machine's side, which needs only what POSIX and Python have, and no torch.

The other side runs the same launcher (`launcher.cli.ssh_serve`). What passes is the command line, the code that it
lacks, and what its commands print.

- `clusters`: profiles with `ssh`, the one that a command line names, and the runs that are known to be there
- `ssh`: one command over there: OpenSSH, frames between its output, what is said if it does not answer; submissions
  with their code, and what of it is sent
- `install`: what `site init --ssh` does: looks at the other side, and installs the launcher there
"""
