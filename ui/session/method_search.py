"""The search for a method's trees, in a process of its own.

It runs Python code for seconds, and a second Python thread makes NumPy's many short calls wait for the interpreter: a
table of expected tokens took ten times as long while a search ran, and decoding would, too.
"""

import os
import pickle
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path
from threading import Lock, Thread

from sequoia_core import AcceptanceVector, HardwareProfile, TokenTree
from sequoia_core.planning import prediction as predicting
from ui.session import core_cache

ROOT = Path(__file__).resolve().parents[2]
Found = tuple[TokenTree | None, predicting.Prediction]
_ONE_SEARCH = Lock()


@core_cache.cached(64)
def search_method(
    name: str, size: int, depth: int, vector: AcceptanceVector, profile: HardwareProfile
) -> Future[Found]:
    """Start to search for a method's tree, None if trees vary, and its prediction.

    Args:
        name: one of `KINDS`, limited by `size` and `depth`; or "chain" or "chains" for the fastest chain or k chains.
    """
    future: Future[Found] = Future()

    def search() -> None:
        arguments = pickle.dumps((name, size, depth, vector, profile))
        command = [sys.executable, "-m", __name__]
        try:
            with _ONE_SEARCH:
                done = subprocess.run(command, input=arguments, capture_output=True, cwd=ROOT)
            if done.returncode:
                raise RuntimeError(f"the search ended with {done.returncode}: {done.stderr.decode(errors='replace')}")
            future.set_result(pickle.loads(done.stdout))
        except Exception as error:
            future.set_exception(error)  # raised by `Future.result`

    Thread(target=search, daemon=True).start()
    return future


def _search(name: str, size: int, depth: int, vector: AcceptanceVector, profile: HardwareProfile) -> Found:
    if name in core_cache.KINDS:
        fixed = core_cache.make_policy(name, size, depth, vector, profile).fixed
        return fixed, core_cache.policy_prediction(name, size, depth, vector, profile)
    find = predicting.best_chain if name == "chain" else predicting.fastest_chains
    tree = find(vector, profile)
    return tree, core_cache.prediction(vector, profile, tree)


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(5)
    output, sys.stdout = sys.stdout, sys.stderr  # only the result goes to the parent
    pickle.dump(_search(*pickle.load(sys.stdin.buffer)), output.buffer)
