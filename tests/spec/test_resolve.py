"""Layers, their order, what they may hold, and the problems that they raise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from vidqa.core.actions import action
from vidqa.core.actions import action as declared
from vidqa.core.problem import MOST_PROBLEMS, Problem, ProblemError
from vidqa.spec import Layer, dump, fingerprint, load, parse_set, read_layer, resolve
from vidqa.spec.build import profile_layer
from vidqa.spec.keys import leaves
from vidqa.spec.layers import parse_value

TAO = json.loads((Path(__file__).parent / "tao_keys.json").read_text())
TAOS = [(action, version) for action, versions in TAO.items() for version in versions]


def problems(action: str, *layers: Layer) -> list[Problem]:
    with pytest.raises(ProblemError) as raised:
        resolve(action, layers)
    return raised.value.problems


def codes(action: str, *layers: Layer) -> list[str]:
    return [problem.code for problem in problems(action, *layers)]


def test_the_template_passes_its_own_rules(data: Layer, eval_data: Layer) -> None:
    assert resolve("train", [data]).warnings == []
    assert resolve("evaluate", [eval_data]).warnings == []


@pytest.mark.parametrize("profile", action("train").profiles)
def test_every_profile_passes_the_rules_in_every_target(data: Layer, profile: str) -> None:
    for target in ("native", "cosmos-rl"):
        assert resolve("train", [profile_layer("train", profile), data], target).warnings == []


def test_a_later_layer_wins_and_origins_say_which(data: Layer) -> None:
    layers = [
        Layer("profile lora", {"policy.lora": {}, "train.optm_lr": 1e-4}),
        data,
        Layer("mine", {"train.epoch": 7}),
    ]
    resolved = resolve("train", [*layers, parse_set(["learning_rate=2e-4"])])
    assert (resolved.spec.train.epoch, resolved.origins["train.epoch"]) == (7, "mine")
    assert (resolved.spec.train.optm_lr, resolved.origins["train.optm_lr"]) == (2e-4, "--set")
    assert resolved.origins["train.seed"] == "template"
    assert resolved.spec.policy.lora.r == 16


def test_none_takes_an_optional_table_away(data: Layer) -> None:
    lora = Layer("profile", {"policy": {"lora": {"r": 4}}})
    assert resolve("train", [data, lora]).spec.policy.lora.r == 4
    resolved = resolve("train", [data, lora, parse_set(["policy.lora=none"])])
    assert resolved.spec.policy.lora is None
    again = resolve("train", [data, lora, parse_set(["policy.lora=none"]), parse_set(["policy.lora.lora_alpha=3"])])
    assert (again.spec.policy.lora.r, again.spec.policy.lora.lora_alpha) == (16, 3)


def test_a_later_sampling_key_clears_the_other(data: Layer) -> None:
    spec = resolve("train", [data, parse_set(["custom.vision.fps=2"])]).spec
    assert (spec.custom.vision.fps, spec.custom.vision.nframes) == (2.0, None)
    spec = resolve("train", [data, parse_set(["custom.vision.fps=2"]), Layer("b", {"custom.vision.nframes": 4})]).spec
    assert (spec.custom.vision.fps, spec.custom.vision.nframes) == (None, 4)


def test_both_sampling_keys_in_one_layer_are_a_problem(data: Layer, eval_data: Layer) -> None:
    both = {"fps": 2, "nframes": 4}
    assert codes("train", data, Layer("x", {"custom": {"vision": both}})) == ["SPEC_CONFLICT"]
    assert "SPEC_CONFLICT" in codes("evaluate", eval_data, Layer("x", {"vision": both}))
    assert "SPEC_CONFLICT" in codes(
        "train", data, Layer("x", {"train.optm_warmup_steps": 3, "train.optm_warmup_epochs": 1})
    )
    assert codes("train", data, Layer("x", {"custom.vision.nframes": None})) == ["SPEC_VALUE"]


def test_one_frequency_replaces_the_other_and_both_may_stand_together(data: Layer) -> None:
    ckpt = resolve("train", [data, parse_set(["train.ckpt.save_freq=50"])]).spec.train.ckpt
    assert (ckpt.save_freq, ckpt.save_freq_in_epoch) == (50, 0)
    both = Layer("x", {"train.ckpt": {"save_freq": 50, "save_freq_in_epoch": 2}})
    ckpt = resolve("train", [data, both]).spec.train.ckpt
    assert (ckpt.save_freq, ckpt.save_freq_in_epoch) == (50, 2)


def test_a_held_out_part_is_validated_on_unless_the_spec_says_no(data: Layer, tmp_path: Path) -> None:
    part = Layer("mine", {"train": {"train_policy": {"dataset": {"test_size": 0.1}}}})
    resolved = resolve("train", [data, part])
    assert (resolved.spec.validation.enable, resolved.origins["validation.enable"]) == (True, "mine")
    assert resolved.warnings == []
    for layers in ([Layer("off", {"validation.enable": False}), part], [part, parse_set(["validation.enable=false"])]):
        said = resolve("train", [data, *layers])
        assert said.spec.validation.enable is False
        assert [warning.code for warning in said.warnings] == ["SPEC_CONFLICT"]
        (tmp_path / "s.toml").write_text(dump(said.spec))
        assert load(tmp_path / "s.toml", "train") == said.spec
    assert resolve("train", [data, part, parse_set(["train.train_policy.dataset.test_size=null"])]).spec == (
        resolve("train", [data]).spec
    )


def test_shorthand_reaches_the_nested_key(data: Layer) -> None:
    words = ["num_epochs=2", "batch_size=6", "mini_batch=3", "weight_decay=0.1", "warmup_epochs=0.5", "dp_shard_size=4"]
    spec = resolve("train", [data, parse_set([*words, "dp_replicate_size=2"])]).spec
    assert (spec.train.epoch, spec.train.train_batch_per_replica, spec.train.train_policy.mini_batch) == (2, 6, 3)
    assert (spec.train.optm_weight_decay, spec.train.optm_warmup_epochs, spec.train.optm_warmup_steps) == (
        0.1,
        0.5,
        None,
    )
    assert (spec.policy.parallelism.dp_shard_size, spec.policy.parallelism.dp_replicate_size) == (4, 2)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-5", 1e-5),
        ("true", True),
        ("null", None),
        ('["a"]', ["a"]),
        ("['a', 2]", ["a", 2]),
        ("{a = 1}", {"a": 1}),
        ("hf_model://a/b", "hf_model://a/b"),
        ("1.0", 1.0),
        ('"3"', "3"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_values_of_set(text: str, value: object) -> None:
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_every_problem_is_reported_at_once(data: Layer) -> None:
    wrong = {
        "train": {
            "epoch": "3",
            "epsilon": -1,
            "optm_decay_type": "steps",
            "optm_lr": 0,
            "train_policy": {"type": "grpo"},
        },
        "policy": {"lora": {"r": 0}, "model_name_or_path": "nvidia/Cosmos-Reason2-8B"},
        "rollout": {"batch_size": 1},
        "validation": {"enable": True},
        "nothing": 1,
    }
    found = {problem.code: problem for problem in problems("train", data, Layer("x", wrong))}
    wanted = {
        "SPEC_VALUE",
        "SPEC_ACTION",
        "SPEC_UNKNOWN_KEY",
        "SPEC_CONFLICT",
        "SPEC_MODEL",
    }
    assert wanted <= set(found)
    assert all(problem.exit_code == 3 for problem in found.values())


def test_problems_name_key_value_and_rule(data: Layer) -> None:
    (problem,) = problems("train", data, Layer("x", {"train.train_batch_per_replica": 0}))
    assert problem.where == "x train.train_batch_per_replica"
    assert "at least 1" in problem.message and "got 0" in problem.message
    (problem,) = problems("train", data, Layer("x", {"train.ckpt.save_mode": "later"}))
    assert problem.code == "SPEC_VALUE" and '"async", "sync"' in problem.message
    (problem,) = problems("train", data, Layer("x", {"train.epoch": True}))
    assert problem.code == "SPEC_VALUE" and "whole number" in problem.message


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("train.epcoh", "train.epoch"),
        ("train.learning_rate", "learning_rate"),
        ("policy.lora.rank", None),
        ("custom.vision.nframe", "custom.vision.nframes"),
        ("model_max_length", "policy.model_max_length"),
        ("valdation", "did you mean validation"),
    ],
)
def test_an_unknown_key_names_the_nearest(data: Layer, wrong: str, right: str | None) -> None:
    (problem,) = problems("train", data, Layer("x", {wrong: 1}))
    assert problem.code == "SPEC_UNKNOWN_KEY"
    assert right is None or right in problem.remedy


@pytest.mark.parametrize(
    "key", ["rollout.backend", "train.train_policy.kl_beta", "validation.top_p", "vla", "policy.diffusers"]
)
def test_a_reinforcement_key_says_so(data: Layer, key: str) -> None:
    (problem,) = problems("train", data, Layer("x", {key: {} if "." not in key else 1}))
    assert problem.code == "SPEC_UNKNOWN_KEY" and "reinforcement" in problem.message


def test_a_key_of_their_processes_says_so(data: Layer) -> None:
    (problem,) = problems("train", data, Layer("x", {"profiler": {"enable_nsys": True}}))
    assert problem.code == "SPEC_UNKNOWN_KEY" and "own processes" in problem.message


def test_the_number_of_problems_is_bounded(data: Layer) -> None:
    found = problems("train", data, Layer("x", {f"nothing_{n}": 1 for n in range(500)}))
    assert len(found) == MOST_PROBLEMS + 1 and "450 more" in found[-1].message


def test_a_table_where_a_value_belongs_and_the_other_way_round(data: Layer) -> None:
    assert codes("train", data, Layer("x", {"train": 3})) == ["SPEC_VALUE"]
    assert codes("train", data, Layer("x", {"train.epoch": {"a": 1}})) == ["SPEC_VALUE"]
    assert codes("train", data, Layer("x", {"train.epoch.more": 1})) == ["SPEC_UNKNOWN_KEY"]
    assert codes("train", data, Layer("x", {"custom": None})) == ["SPEC_VALUE"]


def test_native_limits_and_keys_without_effect(data: Layer) -> None:
    limits = {"policy.parallelism.tp_size": 2, "train.fp4.enable_fp4": True}
    assert codes("train", data, Layer("x", limits)) == ["SPEC_NOT_SUPPORTED"] * 2
    assert resolve("train", [data, Layer("x", limits)], "cosmos-rl").warnings == []
    warned = resolve("train", [data, Layer("x", {"redis": "12800", "train.sequence_packing": True})]).warnings
    assert [(p.code, p.severity) for p in warned] == [("SPEC_NO_EFFECT", "warning")] * 2
    assert any("engine.packing" in p.remedy for p in warned)


def test_lora_true_as_text_is_true(data: Layer) -> None:
    assert resolve(
        "train", [data, Layer("x", {"policy.lora.init_lora_weights": "true"})]
    ).spec.policy.lora.init_lora_weights
    assert codes("train", data, Layer("x", {"policy.lora.init_lora_weights": "pissa"})) == ["SPEC_NOT_SUPPORTED"]
    assert codes("train", data, Layer("x", {"policy.lora.init_lora_weights": "magic"})) == ["SPEC_VALUE"]


@pytest.mark.parametrize("format", ["toml", "yaml", "json"])
def test_what_is_written_reads_back_as_the_same_spec(tmp_path: Path, data: Layer, format: str) -> None:
    mine = {"policy.lora.r_pattern": {"layers\\.0\\.": 4}, "train.optm_lr": 1e-5, "train.optm_warmup_epochs": 0.5}
    spec = resolve(
        "train", [data, Layer("x", {**mine, "custom.vision.fps": 1.5, "custom.system_prompt": 'Zürich "é"'})]
    ).spec
    path = tmp_path / f"spec.{format}"
    path.write_text(dump(spec, format), encoding="utf-8")
    assert load(path, "train") == spec
    assert fingerprint(load(path, "train")) == fingerprint(spec)


def test_a_fingerprint_ignores_where_a_run_writes_and_starts(data: Layer) -> None:
    def of(**keys: object) -> str:
        return fingerprint(
            resolve("train", [data, Layer("x", {k.replace("__", "."): v for k, v in keys.items()})]).spec
        )

    assert of() == of(train__output_dir="/elsewhere", train__resume="/a/b")
    assert of() != of(train__epoch=4)
    orders = ({".*q_proj": 1.0, ".*": 2.0}, {".*": 2.0, ".*q_proj": 1.0})  # of q_proj the first decides
    assert len({of(policy__lora__alpha_pattern=patterns) for patterns in orders}) == 2


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [("s.toml", "a = 1\nb = = 2\n", 2), ("s.yaml", "a: 1\nb: [1,\n", 3), ("s.json", '{"a": 1,\n "b": }', 2)],
)
def test_broken_files_name_the_line(tmp_path: Path, name: str, text: str, line: int) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(ProblemError) as raised:
        load(path, "train")
    (problem,) = raised.value.problems
    assert problem.code == "SPEC_FILE" and problem.where == f"{path}:{line}"


@pytest.mark.parametrize(
    ("name", "content", "code"),
    [
        ("s.toml", None, "SPEC_FILE"),
        ("s.txt", b"a", "SPEC_FILE"),
        ("s.toml", b"\xff\xfe\x00", "SPEC_FILE"),
        ("s.json", b"[1]", "SPEC_FILE"),
        ("s.yaml", b"just words", "SPEC_FILE"),
        ("s.yaml", b"a: !!python/object:os.system x", "SPEC_FILE"),
        ("s.json", b"[" * 100_000, "SPEC_FILE"),
        ("s.yaml", b"", "SPEC_VALUE"),
    ],
)
def test_unreadable_files(tmp_path: Path, name: str, content: bytes | None, code: str) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ProblemError) as raised:
        load(path, "train")
    assert raised.value.problems[0].code == code


def test_a_problem_in_a_file_names_its_line(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text(
        '[custom.train_dataset]\nannotation_path = "a"\nmedia_path = "b"\n[train]\nepcoh = 3\nepsilon = "x"\n'
    )
    with pytest.raises(ProblemError) as raised:
        load(path, "train")
    assert {p.where for p in raised.value.problems} == {f"{path}:5 train.epcoh", f"{path}:6 train.epsilon"}


def test_yaml_reads_numbers_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("train:\n  optm_lr: 1e-5\n  epsilon: 1.0e-08\n")
    assert read_layer(path).table == {"train": {"optm_lr": 1e-5, "epsilon": 1e-8}}


@pytest.mark.parametrize(("action", "version"), TAOS)
def test_every_key_of_tao_is_known(action: str, version: str) -> None:
    for path in TAO[action][version]:
        path = path.removeprefix("evaluate.") if action == "evaluate" else path
        path = declared(action).shorthand.get(path, path)
        known = path in leaves(action) or any(name.startswith(f"{path}.") for name in leaves(action))
        assert known, path


@pytest.mark.parametrize(("action", "version"), TAOS)
def test_taos_own_defaults_have_the_right_types(action: str, version: str) -> None:
    """TAO's templates contradict themselves; those contradictions are all that is found in them."""
    table = {path: value for path, value in TAO[action][version].items() if value is not None}
    try:
        found = resolve(action, [Layer("tao", table)]).warnings
    except ProblemError as raised:
        found = raised.problems
    errors = {problem.code for problem in found if problem.severity == "error"}
    assert errors <= {"SPEC_CONFLICT", "SPEC_MODEL", "SPEC_VALUE"}, found


def test_null_has_one_meaning_that_survives_a_file(tmp_path: Path, data: Layer) -> None:
    """TOML has no null: whatever a null becomes must read back as the same spec."""
    for path in leaves("train"):
        try:
            spec = resolve("train", [data, Layer("x", {path: None})]).spec
        except ProblemError:
            continue
        (tmp_path / "s.toml").write_text(dump(spec))
        assert load(tmp_path / "s.toml", "train") == spec, path


@pytest.mark.parametrize(
    "layer",
    [
        Layer("--model", {"policy.model_name_or_path": "folder\udcff"}),
        Layer("--set", {"custom.system_prompt": "half of \ud83d"}),
        Layer("--set", {"policy.lora.r_pattern": {"half of \ud83d": 4}}),
        parse_set(["policy.freeze_pattern=" + "[" * 150 + "]" * 150]),
    ],
    ids=["name", "text", "key", "depth"],
)
def test_what_no_file_can_hold_is_a_problem_of_its_place(data: Layer, layer: Layer) -> None:
    found = {problem.code: problem for problem in problems("train", data, layer)}
    assert found["SPEC_FILE"].where == f"{layer.name} {next(iter(layer.table))}"


def test_keys_of_yaml_that_are_no_text_are_unknown_keys(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("1: 2\ntrain: {2: 3}\n")
    assert list(read_layer(path).table) == ["1", "train"]
    with pytest.raises(ProblemError) as raised:
        load(path, "train")
    unknown = [problem.where for problem in raised.value.problems if problem.code == "SPEC_UNKNOWN_KEY"]
    assert unknown == [f"{path}:1 1", f"{path} train.2"]


def test_a_yaml_that_holds_itself_is_a_problem(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text("policy:\n  freeze_pattern: &a [x, *a]\n")
    with pytest.raises(ProblemError) as raised:
        load(path, "train")
    assert raised.value.problems[0].where == f"{path}:2 policy.freeze_pattern"


def test_a_value_that_is_huge_when_written_out_stays_short(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    path.write_text("\n".join([*rows, "train: {epoch: *a11}", ""]))
    with pytest.raises(ProblemError) as raised:
        load(path, "train")
    assert max(len(str(problem)) for problem in raised.value.problems) < 2000


def test_a_warning_about_a_layer_hides_none_about_a_value(data: Layer) -> None:
    theirs = Layer("theirs", {"train": {"train_policy": {"type": "sft"}}, "rollout": {"backend": "vllm"}})
    resolved = resolve("train", [data, theirs, Layer("x", {"train.timestamp": "now"})])
    assert [problem.where for problem in resolved.warnings if problem.code == "SPEC_NO_EFFECT"] == [
        "theirs rollout",
        "train.timestamp",
    ]
