"""Grid Engine: Son of Grid Engine, and those that have its commands (Open, Univa and Altair Grid Engine)."""
