"""Junk values for every option of the optional packages' commands; new options are covered automatically."""

import pytest

from tests.commands import check_junk, options_of_commands


@pytest.mark.sample(5, cover=False)
@pytest.mark.parametrize(("command", "option", "kind"), options_of_commands("sequoia_extras."))
def test_junk_is_refused_before_models_load(command, option, kind, tmp_path, monkeypatch, capfd):
    check_junk(command, option, kind, tmp_path, monkeypatch, capfd)
