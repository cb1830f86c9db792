"""Import this before PyTorch: threads that wait for each other then sleep soon. The app and the command do.

`GOMP_SPINCOUNT` says how often a thread looks again for others before it sleeps, in PyTorch's parallel code and ours.
The default, 300,000 rounds, is up to 16 ms: where a browser or a server wants a core too, the waiting thread holds it
and the awaited one stands in line. It is read once, when PyTorch is imported; a value that the user set stays.
"""

import os

os.environ.setdefault("GOMP_SPINCOUNT", "2000")
