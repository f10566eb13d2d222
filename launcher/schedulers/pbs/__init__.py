"""PBS: its commands, its directives, how it starts tasks, and submitit executors for it."""
