"""AutoML studies: hyperparameter search over the keys of a training spec, as a series of jobs."""
