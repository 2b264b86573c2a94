"""Problems of video and image files, and of their sampling and resizing keys."""

from vidqa.core.problem import Code, Exit

MEDIA_UNREADABLE = Code(
    "MEDIA_UNREADABLE",
    "A video or image is missing, empty, broken, cut off before the frames that its container claims, without moving "
    "pictures (sound only, a cover picture), of a kind that is not read, or of more pixels than are read: 67,108,864 "
    "(8192 x 8192) of a video, 178,956,970 of an image.",
    "Play it with `ffplay FILE` or open it with an image viewer; copy it again from its source, encode it again with "
    "`ffmpeg -i FILE -c:v libx264 NEW.mp4` (scaled down with `-vf scale=1920:-2` where it is too large), save an image "
    "again as PNG or JPEG, or leave it out (of a job: engine.on_bad_sample=quarantine).",
)
VIDEO_DECODE_TIMEOUT = Code(
    "VIDEO_DECODE_TIMEOUT",
    "Decoding a file took longer than its wall-clock limit and was cut off.",
    "Check that the file's storage answers; encode it again with a keyframe every few seconds, or raise the limit.",
)
MEDIA_DECODER_KILLED = Code(
    "MEDIA_DECODER_KILLED",
    "The system killed the process that decoded a file, twice and the second time while no other decoder worked: as a "
    "rule memory is full. It says nothing about the file, which is neither remembered as broken nor left out.",
    "Give the job more memory, or fewer decode workers (train.train_policy.dataloader_num_workers; of an evaluation "
    "engine.decode_workers); then try again.",
    Exit.ENVIRONMENT,
)
MEDIA_KEYS = Code(
    "MEDIA_KEYS",
    "Keys that say how a medium becomes frames cannot hold: they contradict others, no frame lies in the part they "
    "name, they allow fewer tokens than one for each pair of frames, or the model's processor has no such rule.",
    "Correct the key that the message names, or take it out: raise total_pixels or max_pixels or take fewer frames "
    "(fps, nframes); ask about a part within the video (video_start, video_end, a longer inference.window_s).",
)
MEDIA_READ_DIFFERENTLY = Code(
    "MEDIA_READ_DIFFERENTLY",
    "A video or image is read otherwise than its author may expect: its annotation states another frame rate than its "
    "file, its headers state none, its first pictures refer to others that are not there and are no frames, or values "
    "go beyond 8 bits and are clipped to 0 to 255, as transformers and Pillow do it.",
    "Nothing, if that is meant; otherwise correct video_fps or the file: state its rate with `ffmpeg -r RATE -i FILE "
    "-c copy NEW.mp4`, cut the recording again at a keyframe, save the image with 8 bits.",
)
MEDIA_TOO_NARROW = Code(
    "MEDIA_TOO_NARROW",
    "A video or image is more than 200 times as long on one side as on the other; the model's processor refuses it.",
    "Crop it, or leave it out of the annotations.",
)
