"""The `radixgate` command: a file per subcommand. It may import everything; nothing imports it."""
