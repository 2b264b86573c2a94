"""The synthetic video set of `make demo`: clips, questions and the recipe that learns them."""
