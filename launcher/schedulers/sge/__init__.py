"""Grid Engine: Son of Grid Engine, and Open, Univa and Altair Grid Engine. qrsh starts the tasks."""
