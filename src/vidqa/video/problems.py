"""Problems of video and image files, and of their sampling and resizing keys."""

from vidqa.core.problem import Code, Exit

MEDIA_UNREADABLE = Code(
    "MEDIA_UNREADABLE",
    "A video or image is missing, empty, corrupt, truncated before the last frame that its container states, without a "
    "video stream (sound only, a cover picture), of an unsupported format, or above the pixel limit: 67,108,864 (8192 "
    "x 8192) for a video, 178,956,970 for an image.",
    "Play it with `ffplay FILE` or open it in an image viewer; copy it again from its source, encode it again with "
    "`ffmpeg -i FILE -c:v libx264 NEW.mp4` (with `-vf scale=1920:-2` if it is too large), save an image again as PNG "
    "or JPEG, or leave it out (of a job: engine.on_bad_sample=quarantine).",
)
VIDEO_DECODE_TIMEOUT = Code(
    "VIDEO_DECODE_TIMEOUT",
    "Decoding a file exceeded its wall-clock limit and was stopped.",
    "Check the file's storage; encode it again with a keyframe every few seconds, or raise engine.decode_timeout_s.",
)
MEDIA_DECODER_KILLED = Code(
    "MEDIA_DECODER_KILLED",
    "The system twice killed the process that decoded a file, the second time with no other decoder running; usually "
    "memory was full. The file itself may be intact, so it is neither recorded as broken nor left out.",
    "Give the job more memory, or fewer decode workers (train.train_policy.dataloader_num_workers; for an evaluation "
    "engine.decode_workers); then try again.",
    Exit.ENVIRONMENT,
)
MEDIA_KEYS = Code(
    "MEDIA_KEYS",
    "Sampling or resizing keys are invalid: they contradict each other, select a part without frames, allow less than "
    "one token per pair of frames, or are not supported by the model's processor.",
    "Correct or remove the key that the message names: raise total_pixels or max_pixels or take fewer frames (fps, "
    "nframes); select a part within the video (video_start, video_end, a longer inference.window_s).",
)
MEDIA_READ_DIFFERENTLY = Code(
    "MEDIA_READ_DIFFERENTLY",
    "A video or image may be read differently than its author expects: its annotation states another frame rate or a "
    "later end than its file has, its headers state no rate, its first pictures depend on missing ones and are "
    "skipped, or values beyond 8 bits are clipped to 0 to 255, as in transformers and Pillow.",
    "No action needed if this is intended; otherwise correct video_fps, video_end or the file: set its rate with "
    "`ffmpeg -r RATE -i FILE -c copy NEW.mp4`, cut the recording again at a keyframe, save the image with 8 bits.",
)
MEDIA_TOO_NARROW = Code(
    "MEDIA_TOO_NARROW",
    "A video or image has an aspect ratio above 200:1, which the model's processor rejects.",
    "Crop it, or leave it out of the annotations.",
)
