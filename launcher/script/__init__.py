"""Renders the job script of a plan from templates: ours, and the user's own.

It may import spec and what is below it.

- `render`: the variables of the templates; what the driver needs; the order of set-up lines (modules, activate, ...)
- `templates`: loads templates with jinja2, and quotes every value that a template prints
- `quoting`: quotes values as shell words; marks text that is shell code on purpose
- `job_variables`: the type with a scheduler's shell expressions: job id, array element, output file, end of the job
- `start_command`: the command that starts agents or ranks on all nodes, where no srun does: schedulers/tasks.py
- `custom_template`: checks and renders the user's own template (cluster.template)
"""
