"""The subcommands of `python -m monitor`: each adds its options, and runs. Only one is imported."""
