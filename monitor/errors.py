"""What a user did wrong, told in one line."""


class UserError(ValueError):
    """Wrong input: the command line prints the message alone and ends with code 64.

    The message has four parts: what, the rule, what was found, what to do.
    """


EXIT_USER = 64
"""The exit code for wrong input or a wrong environment: no retry helps."""
