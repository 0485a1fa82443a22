"""The `fedsim` command: one file a subcommand. Heavy libraries are imported when a command needs them."""
