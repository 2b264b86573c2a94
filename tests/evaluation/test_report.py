"""The report as a browser would read it, and poster frames of real files."""

import base64
import io
import tarfile
from html.parser import HTMLParser

import av
import numpy as np
import pytest

from vidqa.core.problem import ProblemError
from vidqa.evaluation.metrics import score
from vidqa.evaluation.pages import FAILURES, write_report
from vidqa.evaluation.results import judged
from vidqa.evaluation.thumbnails import card_frames, poster_frames

EVIL = "</div><script>alert(1)</script><img src=x onerror=alert(2)>\" onload='x'"


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags, self.text = [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def all(self, name):
        return [attrs for tag, attrs in self.tags if tag == name]


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    """40 frames at 10 per second, 96x64; frame n has the brightness 6 n."""
    path = tmp_path_factory.mktemp("video") / "clip.mp4"
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=10, options={"g": "10"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for n in range(40):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((64, 96, 3), 6 * n, np.uint8), format="rgb24")))
        out.mux(stream.encode(None))
    return path


def brightness(jpeg):
    with av.open(io.BytesIO(jpeg)) as picture:
        pixels = next(picture.decode(video=0)).to_ndarray(format="rgb24")
    return pixels.shape, int(pixels.mean())


def made(tmp_path, items, **more):
    path = tmp_path / "report.html"
    options = {"metrics": score(items), "recipe": {"fps": 2}, "posters": lambda item: [], "title": "Scores"}
    options |= {"run_dir": path.parent, "took": "20 answers in 3.5 s", **more}
    write_report(path, items=items, **options)
    return Page(path.read_text(encoding="utf-8"))


def wrong(n, **more):
    row = {
        "video_id": f"/data/{n}.mp4",
        "question": f"Question {n}?",
        "gt": "yes",
        "response": "no",
        "sample_id": f"s{n}",
    }
    return judged({**row, **more})


def test_the_page_names_its_run_folder_and_its_time(tmp_path):
    page = made(tmp_path, [wrong(1)])
    assert str(tmp_path) in page.text and "20 answers in 3.5 s" in page.text


def test_posters_are_the_frames_asked_for(video):
    frames = [brightness(frame) for frame in poster_frames(str(video), None, [30, 0, 13, 13], width=48)]
    assert all(shape == (32, 48, 3) for shape, _ in frames)
    assert [value for _, value in frames] == pytest.approx([180, 0, 78, 78], abs=4)


def test_posters_past_the_end_and_far_in(video):
    assert brightness(poster_frames(str(video), None, [900])[0])[1] == pytest.approx(234, abs=4)
    found = [brightness(frame)[1] for frame in poster_frames(str(video), None, [2, 25, 31])]
    assert found == pytest.approx([12, 150, 186], abs=4)


def test_frames_of_a_card_are_the_middles_of_equal_parts(video):
    images = [base64.b64decode(url.partition(",")[2]) for url in card_frames(str(video), 4)["frames"]]
    assert [brightness(image)[1] for image in images] == pytest.approx([30, 90, 150, 210], abs=4)


def test_posters_from_an_archive(video, tmp_path):
    with tarfile.open(tmp_path / "v.tar.gz", "w:gz") as archive:
        archive.add(video, "clips/a.mp4")
    frame = poster_frames(str(tmp_path / "v.tar.gz"), "clips/a.mp4", [20])[0]
    assert brightness(frame)[1] == pytest.approx(120, abs=4)


@pytest.mark.parametrize("name", ["v.tar", "v.tar.gz"])
def test_an_archive_is_read_through_once_for_all_posters(video, tmp_path, monkeypatch, name):
    with tarfile.open(tmp_path / name, "w:gz" if name.endswith("gz") else "w") as archive:
        for number in range(5):
            archive.add(video, f"./clips/{number}.mp4")
    opened, open_tar = [], tarfile.open

    def counted(*arguments, **options):
        opened.append(arguments)
        return open_tar(*arguments, **options)

    monkeypatch.setattr(tarfile, "open", counted)
    for number in range(5):
        assert len(card_frames(f"{tmp_path / name}!clips/{number}.mp4", 3)["frames"]) == 3
    # An uncompressed tar is indexed, and once more where its videos are read; each member of another one is unpacked.
    assert len(opened) <= (2 if name == "v.tar" else 6)


def test_a_poster_that_takes_too_long_is_a_problem(video, monkeypatch):
    monkeypatch.setattr("vidqa.evaluation.thumbnails.LIMIT_S", -1.0)
    with pytest.raises(ProblemError, match="exceeded its time limit"):
        poster_frames(str(video), None, [0])


@pytest.mark.parametrize("content", [None, b"", b"not a video" * 100])
def test_unreadable_posters_are_a_problem(tmp_path, content):
    path = tmp_path / "x.mp4"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ProblemError) as error:
        poster_frames(str(path), None, [0])
    assert error.value.problems[0].code == "MEDIA_UNREADABLE"


def test_every_failure_is_a_card_with_frames(tmp_path, video):
    items = [wrong(1, question="\nIs it?"), wrong(2, response="yes"), wrong(3, response="eh"), wrong(4, gt="no")]
    items += [wrong(5, gt="no", response="<think>")]
    page = made(tmp_path, items, posters=lambda item: poster_frames(str(video), None, [0, 20]))
    cards = page.all("article")
    assert [card["data-error"] for card in cards] == ["wrong", "unparsed", "truncated"]
    assert {card["data-kind"] for card in cards} == {"yes_no"}
    assert '<div class="q">Is it?' in (tmp_path / "report.html").read_text(), "no empty line where the video's tag was"
    assert {"class": "panel wide"} in page.all("div"), "no, yes, (unparsed) and (truncated) need the whole width"
    assert len(page.all("img")) == 6 and all(i["src"].startswith("data:image/jpeg;base64,") for i in page.all("img"))
    assert "/data/3.mp4" in page.text and "/data/2.mp4" not in page.text and "40.0\N{NO-BREAK SPACE}%" in page.text


def test_nothing_a_model_or_user_says_becomes_markup(tmp_path):
    item = wrong(1, question=EVIL, response=EVIL + "\ud800", gt=EVIL + "!", video_id=EVIL, sample_id=EVIL, kind=EVIL)
    page = made(tmp_path, [item] * 3, title=EVIL, recipe={EVIL: EVIL})
    assert len(page.all("script")) == 1 and page.all("img") == []
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert page.text.count("<script>alert(1)</script>") >= 5


def test_the_majority_baseline_and_a_model_with_one_answer_are_on_the_page(tmp_path):
    items = [wrong(n, gt="no") for n in range(9)] + [wrong(n) for n in range(9, 12)]
    page = made(tmp_path, items)
    assert "Majority-class baseline: 75.0 % (dotted line): yes_no “no”" in " ".join(page.text.split())
    problem = "METRIC_ONE_ANSWER at yes_no: all 12 answers are 'no'; expected are 9 x 'no', 3 x 'yes'"
    assert problem in " ".join(page.text.split())
    assert [mark["title"] for mark in page.all("s")] == ["majority-class baseline: 75.0\N{NO-BREAK SPACE}%"] * 2


def test_the_page_needs_no_network(tmp_path):
    page = made(tmp_path, [wrong(1)])
    assert page.all("link") == [] and not any("src" in attrs for attrs in page.all("script"))
    assert any("default-src 'none'" in meta.get("content", "") for meta in page.all("meta"))


def test_many_failures_are_bounded(tmp_path):
    page = made(tmp_path, [wrong(n) for n in range(FAILURES + 30)])
    assert len(page.all("article")) == FAILURES
    assert sum("data-kind" in row for row in page.all("tr")) == 30


def test_unreadable_frames_are_said_in_the_card(tmp_path):
    page = made(tmp_path, [wrong(1)], posters=lambda item: poster_frames("/nowhere.mp4", None, [0]))
    assert "No frames: /nowhere.mp4 cannot be opened: No such file" in page.text


@pytest.mark.parametrize("items", [[], [wrong(1, response="yes")], [wrong(1, gt="")]])
def test_reports_without_failures(tmp_path, items):
    assert made(tmp_path, items).all("article") == []
