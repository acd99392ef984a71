import json
import math
from dataclasses import replace

import pytest

from trainer.checkpoint.train_state import State, TrainState


def test_a_test_loss_that_is_not_a_number_is_never_the_best() -> None:
    """Nothing is less than it: the first one would be the best for ever."""
    fresh = TrainState(seed=1, global_batch_size=1, num_train_samples=1)
    for loss in (math.nan, math.inf):
        lost = replace(fresh, step=1).validated(loss, None)
        assert (lost.best_step, lost.best_test_loss) == (None, None)
        assert lost.num_validations_without_gain == 1
        found = replace(lost, step=2).validated(9.0, None)
        assert (found.best_step, found.best_test_loss) == (2, 9.0)
        assert replace(found, step=3).validated(loss, None).best_step == 2
    assert replace(fresh, step=1).validated(math.nan, 0.5).best_step == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"identity": [1]},
        {"world_size": "2"},
        {"serial": None},
        {"position": []},
        {"position": {"seed": 1, "global_batch_size": 1, "num_train_samples": 1, "step": "3"}},
    ],
)
def test_what_is_no_state_is_refused_where_it_is_read(changed: dict[str, object]) -> None:
    """A checkpoint of a stranger's has whatever it has: no step begins with it."""
    position = TrainState(seed=1, global_batch_size=1, num_train_samples=1, last_loss=math.nan)
    text = State(position=position, identity={"lr": 1}, world_size=2, serial=3).to_json()
    assert State.from_json(text).serial == 3
    with pytest.raises(ValueError, match="not a state"):
        State.from_json(json.dumps(json.loads(text) | changed))
