"""Which partitions the options of sbatch name; tests/rampline/cli/test_submit.py hands jobs in."""

import pytest

from rampline.jobs.batch_job import named_partitions


@pytest.mark.parametrize(
    ("options", "partitions"),
    [
        (["-p", "gpu"], {"gpu"}),
        (["-pgpu"], {"gpu"}),
        (["--partition", "gpu"], {"gpu"}),
        (["--time=5", "--partition=gpu,highmem", "--requeue"], {"gpu", "highmem"}),
        (["-p", "low", "--partition=gpu"], {"gpu"}),
        (["--comment=it's -p low", "-n4"], {"of", "the", "variable"}),
        (["-p"], {"of", "the", "variable"}),
    ],
)
def test_partitions_are_those_of_the_options_and_else_of_the_variable(options, partitions, monkeypatch):
    monkeypatch.setenv("SBATCH_PARTITION", "of,the,variable")
    assert named_partitions(options) == partitions
    monkeypatch.delenv("SBATCH_PARTITION")
    assert named_partitions(["--qos=high"]) == set()
