"""The command `tfctr`: one module per subcommand, each with `add_parser(subparsers)` and `run(args) -> exit code`."""
