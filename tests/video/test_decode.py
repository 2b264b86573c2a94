"""Real files of many kinds: what a probe finds and which frames come out, turned as shown."""

import os
import tarfile
from fractions import Fraction

import av
import pytest
from clips import decode_frames, draw, frame_numbers, mux_silence, write_clip, write_sparse_avi, write_with_packet_times

from vidqa.core.problem import ProblemError
from vidqa.video import decode
from vidqa.video.plan import plan_frames
from vidqa.video.probe import probe
from vidqa.video.types import PixelRules, VisionSpec

NTSC = Fraction(30000, 1001)
KINDS = {
    "plain.mp4": {},
    "b-frames.mp4": {"b_frames": 2},
    "ntsc.mp4": {"fps": NTSC, "b_frames": 2, "frames": 90},
    "ntsc.mkv": {"fps": NTSC, "b_frames": 2, "frames": 90},
    "sound.mov": {"audio": True, "b_frames": 2},
    "sound.mkv": {"audio": True},
    "vp8.webm": {"codec": "libvpx", "audio": True},
    "vp9.webm": {"codec": "libvpx-vp9"},
    "mpeg4.avi": {"codec": "mpeg4"},
    "h264.avi": {"codec": "libx264", "b_frames": 2},
    "stream.ts": {"b_frames": 2},
    "ten-bit.mp4": {"pix_fmt": "yuv420p10le"},
    "odd.mp4": {"width": 71, "height": 53, "pix_fmt": "yuv444p"},
    "odd-vp9.webm": {"width": 71, "height": 53, "codec": "libvpx-vp9"},
    "intra.mp4": {"keyframe_every": 1},
    "one-keyframe.mp4": {"keyframe_every": 1000, "frames": 60},
    "longer.mkv": {"frames": 300, "keyframe_every": 10, "b_frames": 2},
    "vídeo 日本 'x', 100%:a.mp4": {},
}


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_is_probed_and_decoded_exactly(tmp_path, name):
    asked = {"frames": 24, "fps": 8, "width": 64, "height": 48, **KINDS[name]}
    path = write_clip(tmp_path / name, **asked)
    meta = probe(path)
    assert meta.frame_count == asked["frames"]
    assert meta.source_fps == pytest.approx(float(asked["fps"]), rel=1e-3)
    assert meta.duration_s == pytest.approx(asked["frames"] / float(asked["fps"]), rel=1e-3)
    assert (meta.width, meta.height, meta.rotation) == (asked["width"], asked["height"], 0)
    assert meta.frame_times_s is None
    everything = list(range(meta.frame_count))
    assert frame_numbers(decode_frames(path, None, everything)) == everything
    # Sparse, out of order, repeated: by seeking where that pays.
    for wanted in ([meta.frame_count - 1], [0, 23, 11, 12, 13, 11], everything[3::11], [meta.frame_count // 2]):
        assert frame_numbers(decode_frames(path, None, wanted)) == wanted
    assert decode_frames(path, None, [0]).shape == (1, asked["height"], asked["width"], 3)


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_a_turned_video_is_shown_upright(tmp_path, rotation):
    path = write_clip(tmp_path / "turned.mp4", rotation=rotation, width=80, height=48)
    meta = probe(path)
    assert (meta.width, meta.height, meta.rotation) == (80, 48, rotation)
    frames = decode_frames(path, None, range(24))
    assert frames.shape[1:3] == (48, 80)
    assert frame_numbers(frames) == list(range(24))


@pytest.mark.parametrize("suffix", [".mp4", ".mkv"])
def test_a_variable_frame_rate_is_found_by_its_times(tmp_path, suffix):
    times_ms = [0, 100, 150, 400, 500, 1000, 1040, 3000]
    path = write_clip(tmp_path / f"variable{suffix}", times_ms=times_ms, keyframe_every=3)
    meta = probe(path)
    assert meta.frame_count == len(times_ms)
    assert meta.frame_times_s == pytest.approx([t / 1000 for t in times_ms], abs=1e-3)
    for wanted in (list(range(8)), [7], [2, 6]):
        assert frame_numbers(decode_frames(path, None, wanted)) == wanted


def test_a_little_jitter_is_not_a_variable_rate(tmp_path):
    path = write_clip(tmp_path / "jitter.mkv", times_ms=[0, 33, 67, 100, 133, 167, 200, 234, 266, 300])
    meta = probe(path)
    assert meta.frame_times_s is None and meta.source_fps == pytest.approx(30, rel=0.01)


def test_a_title_that_is_no_utf8(tmp_path):
    path = write_clip(tmp_path / "plain.mkv")
    titled = tmp_path / "titled.mkv"
    with av.open(str(path)) as source, av.open(str(titled), "w") as target:
        target.metadata["title"] = "T\u00e4glich"
        copy = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = copy
                target.mux(packet)
    data = titled.read_bytes()
    assert data.count("T\u00e4glich".encode()) == 1
    titled.write_bytes(data.replace("T\u00e4".encode(), b"T\xe4 "))
    assert probe(titled) == probe(path)


@pytest.mark.parametrize("index", [True, False])
def test_frames_without_data_keep_the_picture_before_them(tmp_path, index):
    """As in screen recordings in AVI: 444 frames at 15 a second, 68 of them with data, are 29.6 s and not 4."""
    at = [0, 3, 4, *range(40, 360, 5), 400]
    path = write_sparse_avi(tmp_path / "tree.avi", at=at, frames=444, index=index)
    assert len(at) == 68
    meta = probe(path)
    assert (meta.frame_count, meta.source_fps, meta.duration_s) == (444, 15, pytest.approx(29.6))
    rules = PixelRules(16, 2, 2, 4096, 1 << 24, min_frames=4, max_frames=768)
    plan = plan_frames(meta, VisionSpec(rules, rules, fps=1))
    assert len(plan.indices) == 29 and plan.times_s[-1] == pytest.approx(443 / 15)
    shown = [max(place for place in at if place <= number) for number in range(444)]
    assert frame_numbers(decode_frames(path, None, range(444))) == shown
    for wanted in ([443], [2, 3], [39, 1, 38], plan.indices):
        assert frame_numbers(decode_frames(path, None, wanted)) == [shown[number] for number in wanted]


def test_frames_without_data_between_predicted_ones(tmp_path):
    path = write_clip(tmp_path / "whole.avi", frames=6, fps=15, codec="mpeg4", keyframe_every=3, audio=False)
    places = [0, 7, 8, 20, 21, 40]
    with av.open(str(path)) as source, av.open(str(tmp_path / "gaps.avi"), "w") as target:
        copy = target.add_stream_from_template(source.streams.video[0])
        for packet, place in zip((p for p in source.demux(video=0) if p.size), places, strict=True):
            packet.stream, packet.pts, packet.dts, packet.time_base = copy, place, place, Fraction(1, 15)
            target.mux(packet)  # which writes the frames between them without data
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        tar.add(path, "first.avi")
        tar.add(tmp_path / "gaps.avi", "gaps.avi")
    meta = probe(tmp_path / "a.tar", "gaps.avi")
    assert (meta.frame_count, meta.source_fps) == (41, 15)
    shown = [sum(place <= number for place in places) - 1 for number in range(41)]
    assert frame_numbers(decode_frames(tmp_path / "a.tar", "gaps.avi", range(41))) == shown


def test_frames_that_an_encoder_left_out_keep_the_picture_before_them(tmp_path):
    """MPEG-4 encoders write a packet of a few bytes for such a frame, of which decoders make no picture."""
    whole, path, left_out = write_clip(tmp_path / "whole.avi", codec="mpeg4"), tmp_path / "a.avi", (1, 4, 5, 13)
    with av.open(str(whole)) as source, av.open(str(path), "w") as target:
        copy = target.add_stream_from_template(source.streams.video[0])
        for number, packet in enumerate(packet for packet in source.demux(video=0) if packet.size):
            if number in left_out:
                times, packet = packet, av.Packet(not_coded(bytes(packet)))
                packet.pts, packet.dts, packet.time_base = times.pts, times.dts, times.time_base
            packet.stream = copy
            target.mux(packet)
    kept = [number for number in range(24) if number not in left_out]
    assert probe(path).frame_count == 24
    with av.open(str(path)) as container:  # which gives fewer pictures than there are frames
        pictures = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(pictures) == len(kept)
    for number, frame in enumerate(decode_frames(path, None, range(24))):
        before = sum(place <= number for place in kept) - 1
        assert (frame == pictures[before]).all() and (decode_frames(path, None, [number])[0] == frame).all()


def not_coded(picture: bytes) -> bytes:
    """The head of an MPEG-4 picture at 8 frames a second, followed by the bit that says that nothing is coded."""
    start = picture.index(b"\0\0\1\xb6") + 4
    bits = "".join(f"{byte:08b}" for byte in picture[start : start + 8])
    seconds_end = bits.index("0", 2) + 1
    head = bits[: seconds_end + 1 + 3 + 1] + "00"
    head += "1" * (-len(head) % 8)
    return picture[start - 4 : start] + int(head, 2).to_bytes(len(head) // 8)


def test_a_recording_that_was_cut_off_has_the_frames_that_are_in_it(tmp_path):
    path = write_sparse_avi(tmp_path / "cut.avi", at=[0, 10, 60, 61, 90], frames=100)
    whole = path.read_bytes()
    path.write_bytes(whole[: whole.rindex(b"\xff\xd8", 0, whole.rindex(b"\xff\xd8")) - 8 + 4])
    meta = probe(path)
    assert meta.frame_count == 61
    assert frame_numbers(decode_frames(path, None, [0, 59, 60])) == [0, 10, 60]


@pytest.mark.parametrize("name", ["broken.mp4", "broken.mkv"])
@pytest.mark.parametrize("clip", [{"b_frames": 2}, {"b_frames": 3, "keyframe_every": 1000}, {}])
def test_times_that_are_those_of_decoding_are_put_in_order(tmp_path, name, clip):
    """Decoders give such frames in the order in which they are shown, with times that go back and forth."""
    path = write_with_packet_times(tmp_path / name, frames=60, **clip)
    meta = probe(path)
    assert (meta.frame_count, meta.source_fps, meta.frame_times_s) == (60, 8, None)
    everything = list(range(60))
    assert frame_numbers(decode_frames(path, None, everything)) == everything
    for wanted in ([59], [17], [0, 13, 26, 58], [40, 2]):
        assert frame_numbers(decode_frames(path, None, wanted)) == wanted


def test_times_that_go_back_are_found_out_where_the_header_does_not_tell(tmp_path, monkeypatch):
    monkeypatch.setattr(decode, "_times_are_of_packets", lambda path, member, timeline: False)
    path = write_with_packet_times(tmp_path / "broken.mp4", frames=60, b_frames=2)
    for wanted in (range(60), [2], [3], [30], [40, 44], [59]):
        assert frame_numbers(decode_frames(path, None, wanted)) == list(wanted)


def test_one_frame(tmp_path):
    path = write_clip(tmp_path / "one.mp4", frames=1)
    assert probe(path).frame_count == 1
    assert frame_numbers(decode_frames(path, None, [0, 0])) == [0, 0]


def test_open_groups_of_pictures_are_decoded_exactly(tmp_path):
    path = tmp_path / "open.mkv"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=8)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        stream.codec_context.gop_size = 8
        stream.options = {"x264-params": "open-gop=1:keyint=8:min-keyint=8:bframes=3:b-adapt=0:scenecut=0", "crf": "8"}
        for number in range(64):
            frame = av.VideoFrame.from_ndarray(draw(number, 48, 64), format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    for number in range(64):
        assert frame_numbers(decode_frames(path, None, [number])) == [number]


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "ts", "flv"])
def test_sparse_frames_are_reached_by_seeking(tmp_path, monkeypatch, suffix):
    path = write_clip(tmp_path / f"long.{suffix}", frames=1200, keyframe_every=20, fps=30, b_frames=2)
    decoded = []

    class Counting(decode._Walk):
        def _pass(self, frame):
            decoded.append(frame.pts)
            return super()._pass(frame)

    monkeypatch.setattr(decode, "_Walk", Counting)
    assert frame_numbers(decode_frames(path, None, [5, 600, 1190])) == [5, 600, 1190]
    assert len(set(decoded)) < 100


def test_a_tar_member_is_read_in_place(tmp_path):
    archive = tmp_path / "videos, 1.tar"
    with tarfile.open(archive, "w") as tar:
        for number, name in enumerate(["a/ä b.mp4", "a/c.mkv"]):
            clip = write_clip(tmp_path / f"x{number}{name[-4:]}", first_number=100 * number, audio=True)
            tar.add(clip, name)
    assert probe(archive, "a/ä b.mp4").frame_count == 24
    assert frame_numbers(decode_frames(archive, "a/ä b.mp4", [3, 20])) == [3, 20]
    assert frame_numbers(decode_frames(archive, "a/c.mkv", [3, 20])) == [103, 120]
    assert problem_of(probe, archive, "a/none.mp4").code == "MEDIA_UNREADABLE"


def problem_of(function, *arguments):
    with pytest.raises(ProblemError) as caught:
        function(*arguments)
    return caught.value.problems[0]


def test_broken_files_are_named(tmp_path):
    good = write_clip(tmp_path / "good.mp4", frames=60)
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "text.mp4").write_text("not a video\n" * 100)
    (tmp_path / "head.mp4").write_bytes(good.read_bytes()[:200])
    (tmp_path / "list.m3u8").write_text("#EXTM3U\n#EXTINF:10,\nhttp://127.0.0.1:9/a.ts\n")
    os.mkfifo(tmp_path / "pipe.mp4")
    (tmp_path / "folder.mp4").mkdir()
    expected = {
        "empty.mp4": "MEDIA_UNREADABLE",
        "text.mp4": "MEDIA_UNREADABLE",
        "head.mp4": "MEDIA_UNREADABLE",
        "list.m3u8": "MEDIA_UNREADABLE",
        "pipe.mp4": "MEDIA_UNREADABLE",
        "folder.mp4": "MEDIA_UNREADABLE",
        "missing.mp4": "MEDIA_UNREADABLE",
        "nul\0.mp4": "MEDIA_UNREADABLE",
    }
    for name, code in expected.items():
        for found in (problem_of(probe, tmp_path / name), problem_of(decode_frames, tmp_path / name, None, [0])):
            assert (name, found.code) == (name, code)
            assert name in found.where
    compressed = tmp_path / "a.tar.gz"
    with tarfile.open(compressed, "w:gz") as tar:
        tar.add(good, "good.mp4")
    assert "uncompressed tar" in problem_of(probe, compressed, "good.mp4").message


def test_sound_alone_has_no_pictures(tmp_path):
    path = tmp_path / "sound.mp4"
    with av.open(str(path), "w") as container:
        mux_silence(container, container.add_stream("aac", rate=48000))
    assert problem_of(probe, path).code == "MEDIA_UNREADABLE"


def test_a_file_that_was_cut_off_is_found_by_its_header(tmp_path):
    whole = write_clip(tmp_path / "whole.mp4", frames=200)
    # The table of frames goes to the front, as in files made for the web; then the end is lost.
    front = tmp_path / "front.mp4"
    with av.open(str(whole)) as source, av.open(str(front), "w", options={"movflags": "faststart"}) as target:
        copy = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.dts is not None:
                packet.stream = copy
                target.mux(packet)
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(front.read_bytes()[: -front.stat().st_size // 4])
    found = problem_of(probe, cut)
    assert found.code == "MEDIA_UNREADABLE" and "200" in found.message
    assert problem_of(decode_frames, cut, None, [199]).code == "MEDIA_UNREADABLE"


@pytest.mark.parametrize("first_bad_byte", [0, 20])
def test_damage_is_not_decoded_in_silence(tmp_path, first_bad_byte):
    path = write_clip(tmp_path / "damaged.mp4", frames=120, keyframe_every=50, width=320, height=240)
    content = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        entry = container.streams.video[0].index_entries[60]
    content[entry.pos + first_bad_byte : entry.pos + entry.size] = b"\xff" * (entry.size - first_bad_byte)
    path.write_bytes(content)
    # The damaged frame, and those predicted from it up to the next keyframe at 100.
    for wanted in ([60], [61], [99], range(120)):
        assert problem_of(decode_frames, path, None, wanted).code == "MEDIA_UNREADABLE"
    for wanted in ([0, 59], [100], [110, 119]):
        assert frame_numbers(decode_frames(path, None, wanted)) == wanted


def test_a_frame_number_beyond_the_end(tmp_path):
    path = write_clip(tmp_path / "short.mp4")
    assert problem_of(decode_frames, path, None, [24]).code == "MEDIA_UNREADABLE"
