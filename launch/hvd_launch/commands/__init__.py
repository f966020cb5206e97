"""The subcommands: modules with HELP, EXAMPLE, add_arguments(parser), run(options, command)."""
