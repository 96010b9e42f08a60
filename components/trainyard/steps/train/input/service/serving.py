"""The process of an input worker, as `InputProcess` starts it: prepares batches for a training elsewhere.

It ends when the training has committed its output.
"""

from __future__ import annotations

import argparse
import os
import sys

from trainyard import events, uris
from trainyard.errors import ConfigurationError, ExitCode, TrainyardError, failure_fields
from trainyard.steps.train.peers import settings
from trainyard.storage import storage


def main() -> None:
    """Serve at this worker's address until the training has ended; ends the process with the table's exit code."""
    parser = argparse.ArgumentParser(prog="python -m trainyard.steps.train.input.service.serving", description=__doc__)
    for name in ("examples", "output"):
        parser.add_argument(f"--{name}", required=True)
    options = parser.parse_args()
    code = ExitCode.DONE
    try:
        _serve(options.examples, options.output)
    except TrainyardError as error:
        code = error.exit_code
        events.emit("failed", step="train", **failure_fields(error))
    sys.stderr.flush()
    os._exit(int(code))


def _serve(examples: str, output: str) -> None:
    addresses = settings.input_addresses()
    index, token = os.environ.get(settings.WORKER_INDEX, ""), os.environ.get(settings.GANG_TOKEN, "")
    if not index.isdigit() or int(index) >= len(addresses) or not token:
        raise ConfigurationError(
            f"{settings.INPUT_WORKERS}, {settings.WORKER_INDEX}, {settings.GANG_TOKEN}: {','.join(addresses)!r} has no "
            f"input worker {index!r}, or the token is missing. Trainyard sets all three: start it by an environment "
            "with input_workers."
        )
    uris.bypass_proxy(addresses)
    # Here and not above: its seconds of import must not hold up a usage error.
    from trainyard.steps.train.input.service import server

    server.serve(addresses[int(index)], token, examples, lambda: storage.committed(output) is not None)


if __name__ == "__main__":
    main()
