"""The rows of the small sweep from one process, which every other way of running it must give."""

import pytest

from tests.sweep_plans import serial_rows


@pytest.fixture(scope="package")
def serial(tmp_path_factory):
    return serial_rows(tmp_path_factory.mktemp("serial"))
