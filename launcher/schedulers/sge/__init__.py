"""Grid Engine: Son of Grid Engine, and those that have its commands (Open, Univa and Altair Grid Engine).

The modules are listed in `launcher.schedulers`. qrsh starts the tasks. There are no suggestions and no notices.
"""
