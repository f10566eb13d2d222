"""Grid Engine: Son of Grid Engine, and its relatives with the same commands (Open, Univa and Altair Grid Engine).

`launcher.schedulers` lists the modules. qrsh starts the tasks.
"""
