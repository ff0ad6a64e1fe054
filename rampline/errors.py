"""The errors a user meets: each is one clear line that says what is wrong, where, and what is allowed."""

import errno

NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Lustre mounted without `flock`, some in user space, NFS without its daemon.
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
NOT_ALLOWED = (errno.EROFS, errno.EACCES, errno.EPERM)


# Before the line that says why a process of ours failed: on the standard error of a command, in the log of a role.
ERROR_MARK = "rampline: error: "


class RamplineError(Exception):
    """Base of every error that is shown to the user as one line, without a traceback. Exit status 1."""

    exit_status = 1


class InputError(RamplineError):
    """The user asked for something that cannot be done as written. Exit status 2, nothing was started."""

    exit_status = 2


class InUse(InputError):
    """Another process is at work on what is asked for: it may be free later. Exit status 1, not that of wrong input."""

    exit_status = 1


class ConfigError(InputError):
    """A study, run configuration or override is wrong."""


class DatasetError(InputError):
    """A dataset source cannot be read, or what it holds cannot be trained on."""


class DownloadFailed(DatasetError):
    """What a dataset, or weights, are downloaded from did not answer: another try may help."""


class ClusterConfigError(InputError):
    """TF_CONFIG, or the set of devices and processes asked for, is wrong."""


class RunFailed(RamplineError):
    """A run started and did not complete."""


class TakenOver(RunFailed):
    """Another machine goes on with the execution, from what the object store had: what is done here counts no more."""


class Preempted(RamplineError):
    """Training was asked to stop, saved a checkpoint and left: the next start goes on from there."""

    def __init__(self, message: str, exit_status: int = 143) -> None:
        super().__init__(message)
        self.exit_status = exit_status


def says_disk_full(error: BaseException | None) -> bool:
    """Whether an error, or what led to it, says that the disk is full: of the system, or of sqlite."""
    while error is not None:
        if (isinstance(error, OSError) and error.errno in NO_SPACE) or "database or disk is full" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False
