"""`launcher.sh` ends here: run a rank's agent."""

from __future__ import annotations

import os
import signal
import sys

# Until the loop handles it, an interrupt ends this process without a traceback of its imports.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from jobs.agent.main import main

# At once: a thread may be stuck in a write to a log that nobody reads.
os._exit(main(sys.argv[1:]))
