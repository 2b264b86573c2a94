"""The table of what a model got wrong, made from the results of an evaluation."""
