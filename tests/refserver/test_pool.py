import numpy as np
import pytest

from fidelity.refserver.pool import Pool, block_size


@pytest.mark.parametrize(
    ("nbytes", "size"), [(0, 512), (1, 512), (512, 512), (513, 1024), (1024, 1024), (3000, 4096)]
)
def test_size_classes_are_powers_of_two_from_512(nbytes: int, size: int) -> None:
    assert block_size(nbytes) == size


def test_a_block_comes_back_as_it_was_left() -> None:
    pool = Pool()
    first = pool.take((4, 32), np.float32)
    assert not first.any()  # a new block is zero
    first.fill(7)
    pool.give(first)
    second = pool.take((2, 64), np.float32)
    assert (second == 7).all()


def test_int32_minus_one_is_read_as_nan() -> None:
    pool = Pool()
    ids = pool.take((128,), np.int32)
    ids.fill(-1)
    pool.give(ids)
    assert np.isnan(pool.take((128,), np.float32)).all()


def test_the_last_block_given_back_is_the_first_taken() -> None:
    pool = Pool()
    a, b = pool.take((128,), np.float32), pool.take((128,), np.float32)
    a.fill(1)
    b.fill(2)
    pool.give(a)
    pool.give(b)
    assert pool.take((128,), np.float32)[0] == 2
    assert pool.take((128,), np.float32)[0] == 1


def test_classes_do_not_mix() -> None:
    pool = Pool()
    small = pool.take((128,), np.float32)
    small.fill(3)
    pool.give(small)
    assert not pool.take((129,), np.float32).any()
    assert (pool.take((100,), np.float32) == 3).all()


def test_a_block_taken_is_not_handed_out_twice() -> None:
    pool = Pool()
    a, b = pool.take((128,), np.float32), pool.take((128,), np.float32)
    assert not np.shares_memory(a, b)


def test_clear_makes_blocks_new_again() -> None:
    pool = Pool()
    dirty = pool.take((128,), np.float32)
    dirty.fill(5)
    pool.give(dirty)
    pool.clear()
    assert not pool.take((128,), np.float32).any()


def test_only_its_own_arrays_can_be_given_back() -> None:
    with pytest.raises(ValueError, match="taken from a pool"):
        Pool().give(np.zeros(4))
