"""Broken inputs of reinforcement learning, in the corpus's form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.preflight.corpus import BROKEN, Case

COLOURS = "Which colour?\n(A) red\n(B) blue"


def refine(case: Case, **changes: Any) -> None:
    """A sound GRPO spec over the case's records; `changes` are keys with `__` for a dot."""
    case.spec |= {
        "train.train_policy.type": "grpo",
        "train.train_batch_per_replica": 4,
        "train.max_num_steps": 1,
        "rollout.n_generation": 2,
        "rollout.max_response_length": 16,
        **{name.replace("__", "."): value for name, value in changes.items()},
    }


def refined(**changes: Any) -> Callable[[Case], None]:
    return lambda case: refine(case, **changes)


def asked(question: str, answer: str, **changes: Any) -> Callable[[Case], None]:
    """The first record asks something else."""

    def spoil(case: Case) -> None:
        turns = [{"from": "human", "value": f"<video>\n{question}"}, {"from": "gpt", "value": answer}]
        case.train[0]["conversations"] = turns
        refine(case, **changes)

    return spoil


def one_letter(case: Case) -> None:
    for record in case.train:
        record["conversations"][1]["value"] = "yes"
    refine(case, engine__balance="label")


def own_reward(body: str) -> Callable[[Case], None]:
    def spoil(case: Case) -> None:
        (case.folder / "own.py").write_text(f"def score(text, record, token_ids, finish_reason):\n    {body}\n")
        refine(case, train__train_policy__reward_function=f"{case.folder / 'own.py'}:score")

    return spoil


BROKEN |= {
    f"reinforcement: {title}": (spoil, code)
    for title, code, spoil in (
        ("an answer that is no option", "REWARD_REFERENCE", asked(COLOURS, "C")),
        (
            "a reference that is no number",
            "REWARD_REFERENCE",
            asked("How many?", "a few", **{"train__train_policy__reward_function": "number"}),
        ),
        ("one label with balance", "REWARD_LABELS", one_letter),
        ("one completion a question", "SPEC_VALUE", refined(rollout__n_generation=1)),
        ("a batch of part groups", "SPEC_CONFLICT", refined(train__train_batch_per_replica=5)),
        ("no room for a completion", "SAMPLE_TOO_LONG", refined(policy__model_max_length=32)),
        ("dropout of adapters", "SPEC_CONFLICT", refined(policy__lora={"lora_dropout": 0.1})),
        ("packs that GPUs share", "SPEC_CONFLICT", refined(policy__parallelism__cp_size=2)),
        ("a spec of supervised training", "SPEC_ACTION", refined(train__train_policy__type="sft")),
        (
            "a format that nothing asks for",
            "REWARD_FORMAT",
            refined(train__train_policy__reward_function=["accuracy", "format"]),
        ),
        ("no such reward file", "USER_FUNCTION", refined(train__train_policy__reward_function="none.py:score")),
        ("a reward that does not compile", "USER_FUNCTION", own_reward("return (")),
        ("a reward that is no number", "USER_FUNCTION", own_reward("return 'much'")),
    )
}
