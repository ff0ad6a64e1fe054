"""Health check of a container: `RAMPLINE_HEALTH_URL` must answer; without it there is nothing to ask."""

import os
import sys
import urllib.request

TIMEOUT_SECONDS = 8


def main() -> int:
    """0 when the address answers with a status below 400, or none is given; else 1, and why in one line."""
    url = os.environ.get("RAMPLINE_HEALTH_URL")
    if not url:
        return 0
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS):
            return 0
    except OSError as error:
        print(f"{url}: {error}", file=sys.stderr)  # noqa: T201
        return 1


if __name__ == "__main__":
    sys.exit(main())
