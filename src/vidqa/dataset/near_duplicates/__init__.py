"""Which files look alike: the same scene, cut or encoded again, whatever the files are called and hold."""

from vidqa.dataset.near_duplicates.glances import glances, remember
from vidqa.dataset.near_duplicates.pictures import alike, alike_groups, glance, thumbnails

__all__ = ["alike", "alike_groups", "glance", "glances", "remember", "thumbnails"]
