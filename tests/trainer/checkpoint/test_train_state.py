import math
from dataclasses import replace

from trainer.checkpoint.train_state import TrainState


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
