"""The subcommands, a module each: HELP, ABOUT, EXAMPLE, add_arguments(parser), run(options)."""
