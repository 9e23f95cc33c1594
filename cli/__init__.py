"""The `cyberkv` command: the only reader of environment, clock and home directory."""
