"""The errors a user meets: each is one clear line that says what is wrong, where, and what is allowed."""


class RamplineError(Exception):
    """Base of every error that is shown to the user as one line, without a traceback. Exit status 1."""

    exit_status = 1


class InputError(RamplineError):
    """The user asked for something that cannot be done as written. Exit status 2, nothing was started."""

    exit_status = 2


class ConfigError(InputError):
    """A study, run configuration or override is wrong."""


class DatasetError(InputError):
    """A dataset source cannot be read, or what it holds cannot be trained on."""


class ClusterConfigError(InputError):
    """TF_CONFIG, or the set of devices and processes asked for, is wrong."""


class RunFailed(RamplineError):
    """A run started and did not complete."""


class Preempted(RamplineError):
    """Training was asked to stop, saved a checkpoint and left: the next start goes on from there."""

    def __init__(self, message: str, exit_status: int = 143) -> None:
        super().__init__(message)
        self.exit_status = exit_status
