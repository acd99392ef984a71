"""For jobs/interactive.sh: ends with 64 and one line if DDP_IMAGE is no image that Pyxis takes."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
    from jobs.backends.containers import check_image, check_pyxis
    from jobs.messages import UsageError, info
    from rundir import codes

    try:
        check_image(os.environ["DDP_IMAGE"])
        check_pyxis(dict(os.environ))
    except UsageError as error:
        info(str(error), "interactive")
        sys.exit(codes.USAGE)
