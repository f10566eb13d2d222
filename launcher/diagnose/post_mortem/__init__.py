"""Why an attempt ended: kinds (a closed list), what they are recognised by, what to do. Only `evidence` reads files."""
