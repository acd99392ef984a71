"""`launcher.sh` ends here: run a rank's agent."""

from __future__ import annotations

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from jobs.agent.main import main

# At once: a thread may be stuck in a write to a log that nobody reads.
os._exit(main(sys.argv[1:]))
