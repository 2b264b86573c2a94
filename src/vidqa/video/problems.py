"""Problems of video and image files, and of what is asked of them."""

from vidqa.core.problem import Code, Exit

VIDEO_UNREADABLE = Code(
    "VIDEO_UNREADABLE",
    "A video file is missing, broken, or of a kind that FFmpeg cannot decode.",
    "Play it with `ffplay FILE`; encode it again with `ffmpeg -i FILE -c:v libx264 NEW.mp4`, or leave it out.",
)
VIDEO_EMPTY = Code(
    "VIDEO_EMPTY",
    "A video file has no bytes or no frames.",
    "Copy or record it again, or leave it out of the annotations.",
)
VIDEO_NO_STREAM = Code(
    "VIDEO_NO_STREAM",
    "A file given as a video has no video stream in it (sound only, or only a cover picture).",
    "Check the name in the annotations, or leave the file out.",
)
VIDEO_TOO_LARGE = Code(
    "VIDEO_TOO_LARGE",
    "The pictures of a video have more than 67,108,864 pixels (8192 x 8192): a decoder would need gigabytes of memory.",
    "Scale it down, for example with `ffmpeg -i FILE -vf scale=1920:-2 NEW.mp4`, or leave it out.",
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
VIDEO_FRAME_MISSING = Code(
    "VIDEO_FRAME_MISSING",
    "A video has fewer frames than its container claims: it was cut off or is damaged.",
    "Copy it again from its source, or rewrite it with `ffmpeg -i FILE -c:v libx264 NEW.mp4`.",
)
VIDEO_BEGINS_MID_GOP = Code(
    "VIDEO_BEGINS_MID_GOP",
    "A video begins inside a group of pictures: its first pictures refer to others that the file does not have. They "
    "are no frames; the video begins with the first picture that can be decoded.",
    "Nothing, if the seconds that annotations name count from that picture; otherwise cut the recording again.",
)
VIDEO_RATE_ASSUMED = Code(
    "VIDEO_RATE_ASSUMED",
    "Neither the container nor the stream of a video states a frame rate; it is taken for 25 frames per second.",
    "Put the stream into a container at its true rate: `ffmpeg -r RATE -i FILE -c copy NEW.mp4`.",
)
VIDEO_FPS_DISAGREES = Code(
    "VIDEO_FPS_DISAGREES",
    "The annotation's video_fps differs from the frame rate of the file; the file's is used.",
    "Correct video_fps in the annotations or remove it.",
)
VIDEO_BUDGET_TOO_SMALL = Code(
    "VIDEO_BUDGET_TOO_SMALL",
    "total_pixels or max_pixels allows fewer tokens than one for each pair of frames.",
    "Raise what it names, or take fewer frames (lower vision.fps or vision.nframes).",
)
MEDIA_KEYS = Code(
    "MEDIA_KEYS",
    "A key that says how a medium becomes frames contradicts others, or the model's processor has no such rule.",
    "Take the key out, or correct the one that it contradicts.",
)
VIDEO_SPAN_EMPTY = Code(
    "VIDEO_SPAN_EMPTY",
    "No frame of a video lies in the part of it that is asked about.",
    "Ask about a part within the video (video_start, video_end); a longer inference.window_s holds more frames.",
)
MEDIA_TOO_NARROW = Code(
    "MEDIA_TOO_NARROW",
    "A video or image is more than 200 times as long on one side as on the other; the model's processor refuses it.",
    "Crop it, or leave it out of the annotations.",
)
IMAGE_CLIPPED = Code(
    "IMAGE_CLIPPED",
    "An image has grey values of 16 or 32 bits, or floats. As transformers and Pillow read it, values are clipped to 0 "
    "to 255 and not scaled: most of such images become white, those with values from 0 to 1 black.",
    "Scale its values to 0 to 255 and save it with 8 bits.",
)
IMAGE_UNREADABLE = Code(
    "IMAGE_UNREADABLE",
    "An image file is missing, empty, broken, larger than 178,956,970 pixels, or of a kind that is not read.",
    "Open it with an image viewer; save it again as PNG or JPEG, or leave it out.",
)
