"""Any text: what is encoded can be read back, holds no chat marker, and is cut in whole characters."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies import codec, foreign_codec
from turncredit.policy.tokenizer import MARKERS
from turncredit.tasks.registry import all_tags

CODECS = {"tags are tokens": codec(), "tags are pieces": foreign_codec()}
words = st.one_of(st.text(max_size=12), st.sampled_from([*MARKERS, *all_tags(), "<|", "|>", "<", ">", " ", "\n"]))
texts = st.lists(words, max_size=8).map("".join)


@pytest.mark.parametrize("name", CODECS)
@given(text=texts)
@settings(deadline=None)
def test_text_comes_back_with_its_chat_markers_broken(name, text):
    c = CODECS[name]
    ids = c.encode_observation(text)
    back = c.decode(ids)
    assert not any(marker in back for marker in MARKERS)
    assert not c.end_ids & set(ids)
    if not any(marker in text for marker in MARKERS):
        assert back == text


@pytest.mark.parametrize("name", CODECS)
@given(text=texts, most=st.integers(0, 12))
@settings(deadline=None)
def test_a_cut_fits_and_is_a_beginning_that_no_longer_one_beats(name, text, most):
    c = CODECS[name]
    cut = c.cut(text, most)
    assert text.startswith(cut)
    assert c.count(cut) <= most
    if c.count(text) <= most:
        assert cut == text


@pytest.mark.parametrize("name", CODECS)
@given(content=texts)
@settings(deadline=None)
def test_a_message_cannot_write_template_scaffolding(name, content):
    c = CODECS[name]
    prompt = c.decode(c.encode_prompt([{"role": "user", "content": content}]))
    assert prompt.startswith("<|user|>")
    assert prompt.endswith("<|end|><|assistant|>")
    assert sum(prompt.count(marker) for marker in MARKERS) == 3
