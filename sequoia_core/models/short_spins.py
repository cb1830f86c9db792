"""Let OpenMP threads that wait for each other sleep after a millisecond. Import this before PyTorch.

`GOMP_SPINCOUNT` is the number of spins before a waiting thread sleeps. The default of 300,000 takes up to 16 ms: if
another process occupies a core, the waiting thread blocks the core that the awaited thread needs. With far fewer spins,
threads would sleep between the parts of every pass, and waking a thread takes longer than one part. The value is read
once, when PyTorch is imported; a value set by the user is left alone.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "20000")
