"""What `make run` serves costs nothing while nobody does anything: the watcher of files once burnt a whole core."""

import time

from tests.served_app import LONG_MS, settle

IDLE_SEC = 10.0
MOST_SHARE = 0.05  # of one core; 0.01 is usual


def test_a_server_that_has_loaded_everything_is_idle_and_its_log_says_nothing_more(own_server, page):
    page.goto(own_server.address)
    settle(page)
    page.get_by_role("button", name="Measure it on this machine").click()
    page.get_by_role("link", name="Watch this run step by step").wait_for(timeout=LONG_MS)
    settle(page)
    time.sleep(2.0)  # caches are filled and files closed behind the page
    began = own_server.cpu_sec()
    time.sleep(IDLE_SEC)
    assert own_server.cpu_sec() - began < MOST_SHARE * IDLE_SEC
    log = own_server.log.read_text()
    assert "arning" not in log and "rror" not in log, log[-2_000:]
    assert len(log.splitlines()) < 20, log[-2_000:]
