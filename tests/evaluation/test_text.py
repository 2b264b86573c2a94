"""Text comparison against its definitions."""

from itertools import product

import pytest

from vidqa.evaluation.text import _common_subsequence, as_text, normalise, rouge_l, token_f1


def slow_subsequence(a, b):
    table = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i, j in product(range(len(a)), range(len(b))):
        same = a[i] == b[j]
        table[i + 1][j + 1] = table[i][j] + 1 if same else max(table[i][j + 1], table[i + 1][j])
    return table[-1][-1]


@pytest.mark.parametrize(
    "pair", [("abcbdab", "bdcaba"), ("", "a"), ("aaa", "aa"), ("abc", "xyz"), ("xaybzc" * 9, "abc" * 20)]
)
def test_bit_vector_subsequence_equals_the_table(pair):
    assert _common_subsequence(*map(list, pair)) == slow_subsequence(*pair)


def test_token_f1_and_rouge_by_hand():
    # tokens without articles: red car turns / red car turns left now -> 2*3/(3+5)
    assert token_f1("The red car turns.", "a red car turns left now") == pytest.approx(0.75)
    # with articles: the red car turns (4) / a red car turns left now (6), common 3 -> 2*3/10
    assert rouge_l("The red car turns.", "a red car turns left now") == pytest.approx(0.6)
    assert rouge_l("turns car red", "red car turns") == pytest.approx(1 / 3)
    assert token_f1("", "x") == 0 and token_f1("", "") == 1 and rouge_l("", "x") == 0


def test_normalised_text():
    assert normalise("  The RED-car, (really)! ") == "red car really"
    assert normalise("A") == "a"  # an answer of nothing but an article keeps it
    assert normalise("3.5 m at 12:30") == "3.5 m at 12:30"


def test_any_json_value_becomes_writable_text():
    assert as_text(None) == as_text(float("nan")) == ""
    assert as_text(3) == "3" and as_text({"a": [1]}) == '{"a": [1]}'
    as_text("half \ud83d pair").encode("utf-8")
