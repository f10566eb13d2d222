"""Files that several machines or users share: reads with three outcomes, atomic writes, owners.

It may import paths, processes and what is below them.

- `retried_reads`: reads of a shared file system: ok, wrong or unavailable, and how long they are retried
- `safe_io`: opens regular files only, appends, replaces atomically; makes folders; JSON within bounds
- `json_types`: checks JSON values against the types of a dataclass, and converts between the two
- `folder_checks`: whose a folder is, who could write to it or replace it, which folders of others the user trusts;
  secrets that only processes of one user can read; whether compute nodes can see a folder
- `permission_bits`: who can write to a folder by its mode, for `__main__`, before anything else may be imported
"""
