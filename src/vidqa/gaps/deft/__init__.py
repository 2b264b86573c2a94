"""The DEFT loop: from the gaps of one model to the next better one, as a state machine on disk."""
