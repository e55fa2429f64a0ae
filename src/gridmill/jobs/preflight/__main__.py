"""`python -m gridmill.jobs.preflight` checks a single pipeline. The question and the answer are JSON."""

import os
import sys
import tempfile
from pathlib import Path

from gridmill.codec import decode, encode
from gridmill.domain.preflight import PreflightRequest, PreflightResult
from gridmill.errors import GridmillError, to_body


def main() -> None:
    """Read a question from standard input, and write the answer or the error to standard output."""
    from gridmill.jobs import arrow

    arrow.keep_pandas_out()
    # imported after `keep_pandas_out`, because it loads Delta Lake, which looks for pandas
    from gridmill.jobs.preflight.run import check

    with tempfile.TemporaryDirectory(prefix="gridmill-preflight-", ignore_cleanup_errors=True) as work:
        try:
            checked = check(decode(sys.stdin.buffer.read(), PreflightRequest), Path(work))
        except GridmillError as error:
            checked = PreflightResult(error=to_body(error))
    sys.stdout.buffer.write(encode(checked))
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
    os._exit(0)  # deltalake's threads sometimes abort a normal exit; the answer is already written
