"""Patterns of the words before an answer: "the answer is", "答案：", "la respuesta es"."""

from __future__ import annotations

ANSWER_NOUN = (
    r"(?:\bans\b\.?|\b(?:answers?|conclusion|verdict|solution|respuesta|réponse|reponse|antwort|lösung|resposta|risposta"
    r"|ответ|cevap|yanıt|đáp án|odpowied[źz]|antwoord|svaret|svar|jawaban)\b"
    r"|答案|答え|解答|回答|正解|정답|답|الإجابة|الجواب|उत्तर)"
)
ANSWER_WORD = (
    rf"(?:{ANSWER_NOUN}|\b(?:choose|chose|pick|select(?:ed|ion)?|go(?:ing)? with|went with|correct|final"
    r"|choisis|elijo|wähle|escolho|scelgo|выбираю)\b|应选|應選|故选|故選|选择|選擇|选|選(?!項))"
)
# What may stand between such a word and the answer.
LINK = (
    r"(?:[\s:=,\-]|\b(?:is|are|was|be|would|will|must|should|has|to|therefore|thus|then|clearly|definitely|indeed"
    r"|certainly|obviously|of\s+course|probably|most|likely|simply|just|only|actually|really|the|an?(?=\s+option)|option|choice"
    r"|letter|answer|number|one|it|i|say|think|believe|correct|right|best|final|correcta?|correcte|richtige?|es|est|ist"
    r"|lautet|la|le|die|der|das|opción|lettre|buchstabe|letra|lettera|является|это|буква|là|adalah|er|är|é|è)\b|l'"
    r"|应该是|应为|应该|應該|是|为|為|选择|選擇|选项|選項|选|選|は|が|은|는|이|가|هي|هو|है)"
)
CLAUSE = r"(?:\s+(?:to|for|of|that|which|in|here)\b[^.\n!;:]{0,80}?(?=\s(?:is|would|must|should)\b|:))?"
