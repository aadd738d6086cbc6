import pytest

from tests.trees import transcript, turn
from turncredit.types import Group, StopReason, Transcript, Turn, TurnStop


def test_every_mask_is_as_drawn() -> None:
    #            prompt | turn 0      obs    | turn 1
    episode = transcript(turn(5, 6, 7, observed=(8, 9)), turn(10, 11))
    assert episode.ids == [1, 2, 5, 6, 7, 8, 9, 10, 11]
    assert episode.loss_mask.tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 1]
    assert episode.turn_id.tolist() == [-1, -1, 0, 0, 0, 0, 0, 1, 1]
    assert episode.logprobs == [0, 0, -1, -1, -1, 0, 0, -1, -1]
    assert episode.sampled_count == 5


def test_a_turn_needs_a_logprob_for_each_sampled_id() -> None:
    with pytest.raises(ValueError, match="2 sampled ids but 1"):
        Turn("", (1, 2), (0.0,), TurnStop.TAG)
    with pytest.raises(ValueError, match="at least one"):
        Turn("", (), (), TurnStop.TAG)


def test_a_group_never_mixes_questions() -> None:
    with pytest.raises(ValueError, match="never mixes"):
        Group.of_chains([transcript(turn(3), question="a"), transcript(turn(3), question="b")])


def test_a_shared_turn_counts_once_and_must_be_the_same() -> None:
    root = turn(5, observed=(6,))
    tree = Group((transcript(root, turn(7)), transcript(root, turn(8, 9))), ((0, 1), (0, 2)))
    assert tree.sampled_count == 4
    assert [t.sampled_ids for t in tree.turns] == [(5,), (7,), (8, 9)]
    with pytest.raises(ValueError, match="different tokens"):
        Group((transcript(root, turn(7)), transcript(turn(6), turn(8))), ((0, 1), (0, 2)))
    with pytest.raises(ValueError, match="two parents"):
        Group((transcript(root, turn(7)), transcript(turn(6), turn(7))), ((0, 1), (2, 1)))
    with pytest.raises(ValueError, match="without gaps"):
        Group((transcript(root),), ((1,),))


def test_an_empty_transcript_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one turn"):
        Transcript("q", (1,), (), StopReason.ANSWERED)
