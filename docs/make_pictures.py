"""Turn a program's coloured terminal output into a picture for the README.

python docs/make_pictures.py docs/demo.svg "make demo" < output
"""

from __future__ import annotations

import io
import sys

from rich.console import Console
from rich.text import Text

WIDTH = 130  # columns; what the widest table takes


def main() -> None:
    """Read the output from standard input and write the picture."""
    path, title = sys.argv[1:3]
    console = Console(width=WIDTH, record=True, file=io.StringIO(), force_terminal=True)
    for line in sys.stdin:
        console.print(Text.from_ansi(line.rstrip("\n")), no_wrap=True, overflow="ellipsis")
    console.save_svg(path, title=title)


if __name__ == "__main__":
    main()
