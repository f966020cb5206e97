"""The subcommands, a module each: HELP, EXAMPLE, add_arguments(parser), run(options, command)."""
