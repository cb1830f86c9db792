"""Import this before PyTorch: threads that wait for each other then sleep after a millisecond. App and command do.

`GOMP_SPINCOUNT` says how often a thread looks again for others before it sleeps, in PyTorch's parallel code and ours.
The default, 300,000 rounds, is up to 16 ms: where another process takes a core, the waiting thread holds the other one,
and the awaited thread stands in line. With far fewer rounds threads sleep between the parts of every pass, and waking
one takes longer than the part. The value is read once, when PyTorch is imported; one that the user set stays.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "20000")
