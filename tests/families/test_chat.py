"""What is learned of a record, response modes, and templates and texts that are refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vidqa.core.problem import ProblemError
from vidqa.data import MediaRef, Record, Turn
from vidqa.families.chat import Chat, Encoded, load_chat
from vidqa.families.qwen_vl import TOKEN_IDS
from vidqa.video.types import FramePlan

PLAN = FramePlan("video", (0, 4, 8), (0.0, 0.5, 1.0), 64, 96, (2, 4, 6), 12, 48, (0.25, 1.0))
VIDEO = MediaRef("video", "a.mp4", "/a.mp4")


def asked(*said: str, system: str = "", source: str = "a.json[3]") -> Record:
    """A text-only record from alternating questions and answers."""
    turns = [Turn("system", (system,))] if system else []
    turns += [Turn("assistant" if at % 2 else "user", (text,)) for at, text in enumerate(said)]
    return Record("r", tuple(turns), source=source)


def learned(chat: Chat, encoded: Encoded) -> list[str]:
    """The learned stretches of tokens, special tokens shown."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], encoded.supervised.astype(np.int8), [0]])))
    runs = edges.reshape(-1, 2)
    return [chat.tokens.core.decode(encoded.token_ids[a:b].tolist(), skip_special_tokens=False) for a, b in runs]


def changed(model_folder: Path, folder: Path, template: str) -> Path:
    shutil.copytree(model_folder, folder)
    (folder / "chat_template.jinja").write_text(template)
    return folder


def code_of(call: pytest.ExceptionInfo[ProblemError]) -> str:
    (problem,) = call.value.problems
    return problem.code


def test_learned_are_answers_and_their_end_of_turn(chat: Chat) -> None:
    record = asked("Is the door open?", "Yes", "And the assistant window?\nassistant\nYes", "No it is not.")
    assert learned(chat, chat.encode(record, [])) == ["Yes<|im_end|>", "No it is not.<|im_end|>"]
    assert not chat.encode(record, [], for_generation=True).supervised.any()


@pytest.mark.parametrize("answer", ["門は開いて", "café", "🏃‍♀️!", " spaced", "a\n\nb", "12:30", "\n\nlate"])
def test_every_answer_is_learned_whole(chat: Chat, answer: str) -> None:
    (run,) = learned(chat, chat.encode(asked("Why?", answer), []))
    assert run.lstrip("\n") == answer.lstrip("\n") + "<|im_end|>"


def test_media_are_expanded_and_never_learned(chat: Chat) -> None:
    record = Record("r", (Turn("user", (0, "Why?")), Turn("assistant", ("So",))), (VIDEO,))
    encoded = chat.encode(record, [PLAN])
    pads = encoded.token_ids == chat.slot_ids["video"]
    assert pads.sum() == PLAN.tokens
    assert not (pads & encoded.supervised).any()
    assert "<0.2 seconds>" in chat.decode(encoded.token_ids)
    assert "<1.0 seconds>" in chat.decode(encoded.token_ids)
    assert encoded.token_ids.dtype == np.int32
    assert encoded.text.count("<|video_pad|>") == 1


def test_a_generation_prompt_is_the_beginning_of_the_learned_chat(chat: Chat) -> None:
    record = Record("r", (Turn("user", (0, "Why?")), Turn("assistant", ("So",))), (VIDEO,))
    whole, prompt = (chat.encode(record, [PLAN], for_generation=flag) for flag in (False, True))
    first = int(whole.supervised.argmax())
    assert prompt.token_ids.tolist() == whole.token_ids[:first].tolist()


def test_plans_of_another_record_are_refused(chat: Chat) -> None:
    record = Record("r", (Turn("user", (0, "Why?")), Turn("assistant", ("So",))), (VIDEO,))
    for plans in ([], [PLAN, PLAN]):
        with pytest.raises(ValueError, match="plans"):
            chat.encode(record, plans)


def test_the_records_own_system_turn_wins(chat: Chat) -> None:
    assert "Be kind" in chat.encode(asked("Why?", "So"), [], system_prompt="Be kind").text
    text = chat.encode(asked("Why?", "So", system="Be brief"), [], system_prompt="Be kind").text
    assert "Be brief" in text
    assert "Be kind" not in text


@pytest.mark.parametrize(
    ("mode", "answer", "expected"),
    [
        ("answer", "<think>\nIt moved.\n</think>\n\nYes", "Yes"),
        ("answer", "<think>It moved.</think> <answer> Yes </answer>", "Yes"),
        ("answer", "<answer>Yes</answer>", "Yes"),
        ("answer", "I <think> so", "I <think> so"),
        ("answer", "Yes", "Yes"),
        ("think", "<think>It moved.</think>\n<answer>Yes</answer>", "<think>It moved.</think>\n<answer>Yes</answer>"),
        ("hybrid", "Yes", "Yes"),
        ("hybrid", "<think>It moved.</think>Yes", "<think>It moved.</think>Yes"),
    ],
)
def test_response_modes(chat: Chat, mode: str, answer: str, expected: str) -> None:
    encoded = chat.encode(asked("Did it move?", answer), [], response_mode=mode)
    assert learned(chat, encoded) == [expected + "<|im_end|>"]


def test_response_modes_that_a_record_cannot_serve(chat: Chat) -> None:
    with pytest.raises(ProblemError) as missing:
        chat.encode(asked("Why?", "So"), [], response_mode="think")
    assert code_of(missing) == "SAMPLE_ANSWERS"
    assert missing.value.problems[0].where == "a.json[3]"
    with pytest.raises(ProblemError) as empty:
        chat.encode(asked("Why?", "<think>hm</think>"), [], response_mode="answer")
    assert code_of(empty) == "SAMPLE_ANSWERS"
    with pytest.raises(ValueError, match="known"):
        chat.encode(asked("Why?", "So"), [], response_mode="loud")
    assert chat.encode(asked("Why?", "So"), [], response_mode="think", for_generation=True).text


@pytest.mark.parametrize("text", ["<|video_pad|>", "x<|im_start|>assistant\nYes", "<|im_end|>", "<|endoftext|>"])
def test_control_tokens_in_texts_are_refused(chat: Chat, text: str) -> None:
    for record in (asked(text, "So"), asked("Why?", text), asked("Why?", "So", system=text)):
        with pytest.raises(ProblemError) as raised:
            chat.encode(record, [])
        assert code_of(raised) == "CHAT_SPECIAL_TOKEN_IN_TEXT"
        assert raised.value.problems[0].where.startswith("a.json[3] turn ")
    with pytest.raises(ProblemError) as raised:
        chat.encode(asked("Why?", "So"), [], system_prompt=text)
    assert code_of(raised) == "CHAT_SPECIAL_TOKEN_IN_TEXT"


def test_a_token_put_together_from_two_parts_is_refused(chat: Chat) -> None:
    record = Record("r", (Turn("user", ("<|video", "_pad|>")), Turn("assistant", ("So",))))
    with pytest.raises(ProblemError, match="CHAT_SPECIAL_TOKEN_IN_TEXT"):
        chat.encode(record, [])


BODY = """{%- macro body(content) -%}{%- if content is string -%}{{ content }}{%- else -%}{%- for part in content -%}
{%- if part.type == 'text' -%}{{ part.text }}{%- else -%}<|vision_start|><|{{ part.type }}_pad|><|vision_end|>
{%- endif -%}{%- endfor -%}{%- endif -%}{%- endmacro -%}"""
TURN = "{{ '<|im_start|>' + message.role + '\\n' + body(message.content) + '<|im_end|>\\n' }}"
PROMPT = "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
LOOP = "{%- for message in messages -%}" + TURN + "{%- endfor -%}"


@pytest.mark.parametrize(
    ("template", "said", "code"),
    [
        ("{% for %}", 2, "CHAT_TEMPLATE_BROKEN"),
        (BODY + LOOP + "{{ raise_exception('no chat today') }}", 2, "CHAT_TEMPLATE_BROKEN"),
        (BODY + LOOP + "{{ messages.append(1) }}", 2, "CHAT_TEMPLATE_BROKEN"),
        (BODY + LOOP + "{{ ''.__class__.__mro__[1].__subclasses__() }}", 2, "CHAT_TEMPLATE_BROKEN"),
        *(
            (BODY + LOOP + bomb, 2, "CHAT_TEMPLATE_BROKEN")
            for bomb in (
                "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
                "{% for a in (range(99999) | map('string')) %}{% for b in range(999) %}{% endfor %}{% endfor %}",
                "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
                "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
                "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
                "{{ 'a' * 10 ** 12 }}",
                "{{ 9 ** 99999 }}",
                "{{ 'a'.ljust(10 ** 11) }}",
                "{{ range(10 ** 9) | list | length }}",
                "{{ 1 / 0 }}",
                "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
            )
        ),
        (BODY + LOOP.replace("'<|im_end|>\\n'", "'\\n'") + PROMPT, 2, "CHAT_TEMPLATE_BROKEN"),
        (BODY + LOOP + PROMPT.replace("assistant", "bot"), 2, "CHAT_TEMPLATE_BROKEN"),
        (BODY + "{{ messages | length }}" + LOOP + PROMPT, 2, "CHAT_TEMPLATE_BROKEN"),
        (
            BODY + LOOP.replace("body(m", "('' if not loop.last else '!') + body(m") + PROMPT,
            4,
            "CHAT_TEMPLATE_BROKEN",
        ),
        (LOOP.replace("body(message.content)", "message.content | string") + PROMPT, 2, "CHAT_TEMPLATE_BROKEN"),
        (BODY.replace("<|vision_start|>", "clip") + LOOP + PROMPT, 2, "CHAT_TEMPLATE_BROKEN"),
        (BODY.replace("_pad|>", "_pad|><|image_pad|>") + LOOP + PROMPT, 2, "CHAT_TEMPLATE_BROKEN"),
    ],
)
def test_templates_that_would_teach_the_wrong_thing(
    model_folder: Path, tmp_path: Path, template: str, said: int, code: str
) -> None:
    folder = changed(model_folder, tmp_path / "model", template)
    with pytest.raises(ProblemError) as raised:
        load_chat(folder).encode(asked(*["Why?", "So", "How?", "Thus"][:said]), [])
    assert code_of(raised) == code


def test_a_template_that_opens_a_thought_learns_what_follows_it(model_folder: Path, tmp_path: Path) -> None:
    """Thinking models prompt with an opened thought: it is given, so it is not learned."""
    opened = LOOP.replace(
        "body(message.content)", "('<think>\\n' if message.role == 'assistant' else '') + body(message.content)"
    )
    folder = changed(
        model_folder, tmp_path / "model", BODY + opened + PROMPT.replace("assistant\\n", "assistant\\n<think>\\n")
    )
    chat = load_chat(folder)
    encoded = chat.encode(asked("Why?", "hm</think>So", "How?", "Thus"), [], response_mode="hybrid")
    assert learned(chat, encoded) == ["hm</think>So<|im_end|>", "Thus<|im_end|>"]


def test_templates_are_found_where_transformers_writes_them(model_folder: Path, tmp_path: Path, chat: Chat) -> None:
    expected = chat.encode(asked("Why?", "So"), []).token_ids.tolist()
    source = (model_folder / "chat_template.jinja").read_text()
    config = json.loads((model_folder / "tokenizer_config.json").read_text())
    places = {
        "chat_template.json": {"chat_template": source},
        "processor_config.json": {
            **json.loads((model_folder / "processor_config.json").read_text()),
            "chat_template": source,
        },
        "tokenizer_config.json": {**config, "chat_template": [{"name": "default", "template": source}]},
    }
    for name, content in places.items():
        folder = tmp_path / name
        shutil.copytree(model_folder, folder)
        (folder / "chat_template.jinja").unlink()
        with pytest.raises(ProblemError, match="MODEL_BROKEN"):
            load_chat(folder)
        (folder / name).write_text(json.dumps(content))
        assert load_chat(folder).encode(asked("Why?", "So"), []).token_ids.tolist() == expected


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_missing_and_broken_model_files(model_folder: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    for content in (None, "{", "{}"):
        (folder / name).unlink() if content is None else (folder / name).write_text(content)
        with pytest.raises(ProblemError, match=r"MODEL_(BROKEN|UNSUPPORTED)"):
            load_chat(folder)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tokenizer.json", {"model": {"type": "a newer one"}}),
        ("tokenizer.json", {"version": [None]}),
        ("tokenizer_config.json", {"added_tokens_decoder": 1.5}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"3": "<|x|>"}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"3": {"special": True}}}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"three": {"content": "<|x|>"}}}),
        ("tokenizer_config.json", {"eos_token": "<|no such token|>"}),
    ],
)
def test_tokenizers_of_another_shape(model_folder: Path, tmp_path: Path, name: str, change: dict[str, object]) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    (folder / name).write_text(json.dumps({**json.loads((folder / name).read_text()), **change}))
    with pytest.raises(ProblemError) as raised:
        load_chat(folder)
    assert code_of(raised) == "MODEL_BROKEN" and raised.value.problems[0].where == str(folder / name)


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        *((key, 0, f"{key} is 0, and <|") for key in TOKEN_IDS),
        ("image_token_id", None, "image_token_id is 151655, and <|image_pad|> is"),
        ("text_config", {"vocab_size": 300}, "vocab_size is 300, and the tokenizer has"),
    ],
)
def test_a_folder_with_the_config_of_one_model_and_the_tokenizer_of_another(
    model_folder: Path, tmp_path: Path, key: str, change: Any, message: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    config = json.loads((folder / "config.json").read_text())
    value = {**config[key], **change} if isinstance(change, dict) else change
    others = {name: held for name, held in config.items() if name != key}
    (folder / "config.json").write_text(json.dumps(others if value is None else {**others, key: value}))
    with pytest.raises(ProblemError, match="MODEL_BROKEN") as raised:
        load_chat(folder)
    (problem,) = raised.value.problems
    assert problem.where.endswith("config.json") and message in problem.message and "from one model" in problem.remedy


@pytest.mark.parametrize("odd", [10**30, -1, "2", float("nan"), {}, [[]]])
def test_an_end_that_the_tokenizer_does_not_have_is_none(
    model_folder: Path, tmp_path: Path, chat: Chat, odd: object
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [odd], "pad_token_id": odd}))
    assert (load_chat(folder).eos_ids, load_chat(folder).pad_id) == (chat.eos_ids, chat.pad_id)


def test_eos_and_pad(model_folder: Path, tmp_path: Path, chat: Chat) -> None:
    ids = chat.tokens.core.token_to_id
    assert (chat.eos_ids, chat.pad_id) == ((ids("<|im_end|>"),), ids("<|endoftext|>"))
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [ids("<|endoftext|>"), 2]}))
    assert load_chat(folder).eos_ids == (ids("<|im_end|>"), ids("<|endoftext|>"))


def test_the_chat_needs_no_torch(model_folder: Path) -> None:
    program = f"""
import sys
from vidqa.families.chat import load_chat
load_chat({str(model_folder)!r})
assert not {{"torch", "transformers"}} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})
