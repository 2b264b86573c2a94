"""Curation: data for the next round: mined, made, assembled, checked for leaks."""
