"""Gap analysis: the table of a model's errors, from the results of an evaluation."""
