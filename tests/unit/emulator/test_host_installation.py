"""How attributes are replaced for a while."""

from __future__ import annotations

import pytest

from flexfa4.emulator.host.cuda_calls import RUNTIME
from flexfa4.emulator.host.installation import _replaced, raise_failure


class Base:
    inherited = 1


class Owner(Base):
    own = 2


@pytest.mark.parametrize("name", ["own", "inherited"])
def test_an_attribute_is_as_it_was_after_the_block_and_after_an_error(name: str) -> None:
    before = dict(vars(Owner))
    with _replaced(Owner, name, 3):
        assert getattr(Owner, name) == 3
    assert dict(vars(Owner)) == before
    with pytest.raises(KeyError), _replaced(Owner, name, 3):
        raise KeyError
    assert dict(vars(Owner)) == before


def test_a_kept_failure_is_raised_once_in_place_of_what_host_code_made_of_it() -> None:
    raise_failure()
    RUNTIME.fail(KeyError("the reason"))
    with pytest.raises(KeyError, match="the reason") as raised:
        try:
            raise RuntimeError("error number 719")
        except RuntimeError:
            raise_failure()
    assert raised.value.__suppress_context__
    raise_failure()
