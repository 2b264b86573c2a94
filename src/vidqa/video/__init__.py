"""Videos and images: probe a file, plan its frames, decode them in processes that can be stopped."""

from vidqa.video.decode import decode_frames
from vidqa.video.image import decode_image, probe_image
from vidqa.video.plan import plan_frames, plan_image
from vidqa.video.probe import fps_disagreement, probe
from vidqa.video.types import FramePlan, ImageMeta, PixelRules, VideoMeta, VisionSpec, vision_spec, with_keys

__all__ = [
    "FramePlan",
    "ImageMeta",
    "PixelRules",
    "VideoMeta",
    "VisionSpec",
    "decode_frames",
    "decode_image",
    "fps_disagreement",
    "plan_frames",
    "plan_image",
    "probe",
    "probe_image",
    "vision_spec",
    "with_keys",
]
