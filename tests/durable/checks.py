"""The audit after each crash."""

import io
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from receiver import cli


def assert_sound(url: str) -> None:
    """Check that `receiver check URL` finds nothing."""
    out, err = io.StringIO(), io.StringIO()
    with patch.object(sys, "argv", ["receiver", "check", url]), redirect_stdout(out), redirect_stderr(err):
        status = cli.run()
    assert status == 0, out.getvalue() + err.getvalue()
