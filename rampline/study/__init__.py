"""Studies: what one is, reading one from a YAML file, checking it here, and what an execution of it is."""

from rampline.study.content import built_in_studies, load_study, study_name
from rampline.study.definition import Study, StudyRun

__all__ = ["Study", "StudyRun", "built_in_studies", "load_study", "study_name"]
