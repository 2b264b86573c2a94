"""The corpus: every broken input is named by its one code first, and nothing sound is called broken."""

from __future__ import annotations

import resource
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.clips import write_clip, write_image
from tests.preflight.conftest import script
from tests.preflight.corpus import BROKEN, NAMED, Case, archive
from tests.preflight.corpus_rl import refine
from vidqa.core.problem import Exit, ProblemError
from vidqa.jobs.job_spec import load_job_spec
from vidqa.jobs.launch import dry_run
from vidqa.jobs.resources import Resources
from vidqa.preflight import launch_gate
from vidqa.spec.layers import action_of


@pytest.fixture(scope="module")
def ready(tmp_path_factory: pytest.TempPathFactory, clips: Path, tiny_model: Path) -> Path:
    """A folder with the media_probe.parquet of the shared clips, so that no case decodes them again."""
    folder = tmp_path_factory.mktemp("ready")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        assert Case(folder, clips, tiny_model, patch).look() == []
    return folder


@pytest.fixture
def case(tmp_path: Path, ready: Path, clips: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Case]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("vidqa.data.storage.hub.PAUSES_S", ())
    monkeypatch.setattr("vidqa.data.storage.hub.TIMEOUT_S", 0.2)
    shutil.copy(ready / "media_probe.parquet", tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    made = Case(tmp_path, clips, tiny_model, monkeypatch)
    with made.closing:
        yield made
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_the_corpus_is_large_enough() -> None:
    assert len(BROKEN) >= 80


def test_the_case_that_is_spoiled_is_sound(case: Case) -> None:
    assert case.look() == []


def test_the_case_with_its_media_in_a_compressed_archive_is_sound(case: Case) -> None:
    archive(case, "videos.tar.gz", "w:gz")
    assert case.look() == [] and case.look() == []  # the second time by the rows of the first


def test_the_case_of_reinforcement_learning_is_sound(case: Case) -> None:
    rewards = ["accuracy", "format"]
    refine(case, train__train_policy__reward_function=rewards, custom__system_prompt="Use <think> and <answer>.")
    assert case.look() == []


@pytest.mark.parametrize("name", BROKEN)
def test_the_one_code_comes_first(case: Case, name: str) -> None:
    spoil, code = BROKEN[name]
    spoil(case)
    found = case.look()
    assert [problem.code for problem in found][:1] == [code], found
    assert found[0].where and found[0].message and found[0].remedy
    assert not [problem for problem in found if problem.message.startswith("0 samples")], "it follows from the fault"
    assert NAMED.get(name, "") in f"{found[0].where} {found[0].message}"
    errors = {problem.code for problem in found if problem.severity == "error"}
    assert not errors or refused(case) & errors, "a launch would start it"


def refused(case: Case) -> set[str]:
    """What a launch is refused for after that preflight: by what is asked and found, or by preflight's own checks."""
    path, place = case.options.get("spec_path", case.folder / case.name), case.options.get("platform", "local")
    ready = partial(launch_gate.ready, engine=case.options.get("engine", "vidqa"))
    wanted = Resources(gpus=case.options["declared"].gpu_count if "declared" in case.options else None)
    try:
        asked = load_job_spec(action_of(path), path, fetch=True)
        problems = ready(asked, path, place, wanted, fetch=True).problems
        problems += dry_run(asked.action, path, place, wanted).problems
    except ProblemError as stopped:
        problems = stopped.problems
    return {problem.code for problem in problems if problem.severity == "error"}


TOGETHER = (
    *("output under a file", "no tokenizer", "learning rate huge", "id twice", "few open files", "clip of no bytes"),
    *("the same video in both sets", "fewer GPUs than ranks", "no such checkpoint"),
)


def test_no_fault_hides_another(case: Case) -> None:
    """Faults of seven groups at once; those of tokens need the tokenizer, which is one of them."""
    for name in TOGETHER:
        BROKEN[name][0](case)
    found = {problem.code for problem in case.look()}
    assert found >= {BROKEN[name][1] for name in TOGETHER}, found


# Faults by the group that sees them, and the exit code of a script that looks at this group alone.
BY_GROUP = {
    "spec": (
        [
            *("unknown key", "unknown table", "a word for a number", "a list for a path"),
            "a choice that is none",
        ],
        Exit.INPUT,
    ),
    "data": (["id twice"], Exit.INPUT),
    "media": (["half a clip"], Exit.INPUT),
    "budget": (["sample too long"], Exit.INPUT),
    "model": (["weights cut off"], Exit.INPUT),
    "environment": (["output under a file"], Exit.ENVIRONMENT),
}


@pytest.mark.parametrize("group", BY_GROUP)
def test_the_script_names_the_faults_of_a_group(case: Case, group: str) -> None:
    names, exit_code = BY_GROUP[group]
    for name in names:
        BROKEN[name][0](case)
    code, result, _ = script("preflight", "--spec", case.write(), "--action", "train", "--only", group)
    said = [(problem["code"], f"{problem['where']} {problem['message']}") for problem in result["problems"]]
    for name in names:
        assert any(BROKEN[name][1] == named and NAMED.get(name, "") in text for named, text in said), (name, said)
    assert code == exit_code and not result["ok"] and not result["next"] and not (case.folder / "runs").exists()


def test_the_script_says_that_a_sound_case_is_ready(case: Case) -> None:
    code, result, _ = script("preflight", "--spec", case.write(), "--platform", "local")
    assert code == 0 and result["next"] and not [p for p in result["problems"] if p["severity"] == "error"]


LONG = "very long " * 20  # with its suffix just below the 255 bytes that a name may have
CLIPS = {
    "plain.mp4": {},
    "variable rate.mp4": {"times_ms": [0, 40, 200, 240, 500, 1000, 1100, 2000]},
    "turned by 90.mp4": {"rotation": 90},
    "turned by 180.mp4": {"rotation": 180},
    "odd.mp4": {"width": 67, "height": 51, "pix_fmt": "yuv444p"},
    "one frame.mp4": {"frames": 1},
    "ten bits.mp4": {"codec": "libx265", "pix_fmt": "yuv420p10le"},
    "b-frames.mp4": {"b_frames": 2},
    "sound.mp4": {"audio": True},
    "apple.mov": {},
    "matroska.mkv": {},
    "web.webm": {"codec": "libvpx-vp9"},
    "old.avi": {"codec": "mpeg4"},
    "视频 – вид\u00e9o 🎬.mp4": {},
    "quotes '\" & $HOME; #1%.mp4": {},
    f"{LONG}.mp4": {},
    "four hours.mp4": {"frames": 1440, "fps": 0.1},
    "tall.mp4": {"width": 32, "height": 640},
    "ntsc.mp4": {"fps": 29.97},
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    for number, (name, options) in enumerate(CLIPS.items()):
        write_clip(folder / name, **{"first_number": 997 * number, **options})
    write_image(folder / "picture.png", number=77, width=65, height=33)
    write_image(folder / "picture.jpg", number=99)
    return folder


@pytest.mark.parametrize("sampling", [{"custom.vision.nframes": 4}, {"custom.vision.fps": 2}], ids=str)
def test_a_sound_set_raises_nothing(case: Case, sound: Path, sampling: dict[str, float]) -> None:
    del case.spec["custom.vision.nframes"]
    case.spec |= {"custom.train_dataset.media_path": str(sound), **sampling}
    names = [*CLIPS, "picture.png", "picture.jpg"]
    case.train = [record(at, name) for at, name in enumerate(names)]
    if "custom.vision.fps" in sampling:
        case.spec["policy.model_max_length"] = 128_000
    assert case.look() == []
    report = case.report("media")
    assert report.facts["media_files"] == report.facts["media_reused"] == len(names) + 2


def record(at: int, name: str) -> dict:
    kind = "image" if name.startswith("picture") else "video"
    question = {"from": "human", "value": f"<{kind}>\nWhat is the {at}. thing?"}
    return {"id": f"Nr. {at}", kind: name, "conversations": [question, {"from": "gpt", "value": f"thing {at}"}]}
