"""How a role ends: what its exit status tells the launcher."""

from __future__ import annotations

import signal

from rampline.errors import InputError

FAILED = 1
WRONG_INPUT = InputError.exit_status
# It would end the same way again: an import error, a loss that is not finite.
WILL_REPEAT = 3
# It could go on no longer because another role was gone or did not answer.
PEER_LOST = 4
# Of the parity check: its steps need more memory than there is.
NO_MEMORY = 5
# It was asked to stop; `stop.json` says whether a checkpoint is saved.
STOPPED = 128 + signal.SIGTERM
# It was asked again, seconds later, and ended where it was.
ENDED_AT_ONCE = 128 + signal.SIGINT
