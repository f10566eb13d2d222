"""Files that several machines or users share: reads with three outcomes, atomic writes, owners.

It may import paths, processes and what is below them.

- `shared_files`: reads of a shared file system: ok, wrong or unavailable; errors as a line for the user; folders that
  nodes see
- `run_files`: opens, appends to, replaces and makes files and folders of runs; limits on size
- `json_types`: checks JSON values against the types of a dataclass, and converts between the two
- `ownership`: who owns a file or folder, who may write to it, and which folders of others the user trusts; secrets that
  only processes of one user can read
- `writers`: who besides the owner can write to a folder, with the standard library alone
"""
