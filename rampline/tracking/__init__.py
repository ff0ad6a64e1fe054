"""MLflow: what a study and its runs leave there, through an explicit `MlflowClient` and one writing process."""
