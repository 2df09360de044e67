"""What measures is not measured: no full collection of what was there before a run."""

import gc

from tfctr.loadtest import collector


def test_what_is_there_is_left_out_of_collections_meanwhile():
    gc.unfreeze()
    with collector.spared():
        assert gc.get_freeze_count() > 1000
        with collector.spared():
            pass
        assert gc.get_freeze_count() > 1000  # the inner one leaves what it found
    assert gc.get_freeze_count() == 0
