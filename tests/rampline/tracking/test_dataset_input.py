"""The dataset of a run in MLflow: once, and told apart from others by content and preparation."""

import dataclasses
import json

from mlflow.utils.validation import MAX_DATASET_DIGEST_SIZE

from rampline.data.dataset import PreparedDataset
from rampline.tracking.run_artifacts import log_dataset, make_dataset
from rampline.tracking.run_log import RunLog


def test_every_run_and_its_study_have_the_dataset_once(client, study_log, make_run_directory):
    for name in ("baseline", "other", "baseline"):  # the last one is continued
        log = RunLog.open(client, make_run_directory(name), parent_run_id=study_log.run_id)
    log.close("COMPLETE")
    for run_id in (log.run_id, study_log.run_id):
        (given,) = client.get_run(run_id).inputs.dataset_inputs
        assert (given.dataset.name, given.dataset.digest) == ("digits", "0123abcd0123-0123")
        assert [(tag.key, tag.value) for tag in given.tags] == [("mlflow.data.context", "training")]
    profile, source = json.loads(given.dataset.profile), json.loads(given.dataset.source)
    assert (profile["train_images"], profile["validation_images"], profile["classes"]) == (100, 10, 2)
    assert profile["fingerprint"] == "0123abcd" * 8
    assert source["uri"].endswith("data/digits-0123")
    assert "(8, 8, 1)" in given.dataset.schema
    experiment = client.get_run(study_log.run_id).info.experiment_id
    found = client.search_runs([experiment], "dataset.name = 'digits' and dataset.digest LIKE '0123abcd%'")
    assert len(found) == 3


def test_the_same_content_prepared_otherwise_is_another_dataset(client, study_log, dataset):
    prepared = PreparedDataset.open(dataset)
    smaller = dataclasses.replace(
        prepared, directory=dataset.parent / "digits-89abcdef01234567", splits={"train": 5, "validation": 1}
    )
    digests = {make_dataset(each).digest for each in (prepared, smaller)}
    assert len(digests) == 2
    assert max(map(len, digests)) <= MAX_DATASET_DIGEST_SIZE
    for _ in range(2):
        for each in (prepared, smaller):
            log_dataset(client, study_log.run_id, each)
    assert {given.dataset.digest for given in client.get_run(study_log.run_id).inputs.dataset_inputs} == digests
