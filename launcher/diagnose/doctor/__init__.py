"""What `doctor` looks at: this machine, its software, its shared folder and its scheduler."""
