"""The command line; `califkit.cli.main.main` is the entry point."""
