"""Renders the script of a job from its plan: quoting, our templates, and templates of the user.

It may import spec and what is below it.

- `render`: the variables of the templates: the order of set-up lines (modules, activate, ...), secrets
- `templates`: jinja2, and its quoting of every value that a template prints
- `quoting`: values as words of a shell script; text that is shell code on purpose
- `job_variables`: shell expressions for the job's id, element, output and end, on each scheduler
- `start_command`: the command that starts agents or tasks on all nodes: srun, or schedulers/tasks.py
- `custom_template`: checks and renders the user's own template
- `shell_context`: whether a place of a script is within quotes, backquotes or a here-document
- `lost_parts`: which parts of ours the user's own template lacks
"""
