"""The subcommands: modules with HELP, ABOUT, EXAMPLE, add_arguments(parser), run(options)."""
