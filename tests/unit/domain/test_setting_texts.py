"""Settings are parsed from texts, and an error names the setting and its owner."""

import re
from collections.abc import Callable

import pytest

from gridmill.domain.setting_texts import PROGRAM, REGION, SettingTexts, words
from gridmill.errors import InputError


def texts(owner: str = "", **given: str) -> SettingTexts:
    return SettingTexts(texts=given, owner=owner)


def test_words_are_split_at_commas():
    assert words(" a, ,b ,") == ("a", "b")


def test_missing_settings_have_their_usual_values():
    none = texts()
    assert none.one("python", PROGRAM, "python3") == "python3"
    assert none.one("subnet", REGION, example="a") == ""
    assert none.many("regions", REGION, "us-") == ()
    assert none.networks("ssh_from", "0.0.0.0/0") == ("0.0.0.0/0",)
    assert (none.flag("spot"), none.choice("address", "public", "private")) == (False, "public")
    assert (none.number("cpus", "4", 1, 8), none.seconds("poll", "5s")) == (4, 5.0)


def test_settings_have_their_values():
    given = texts(
        python="/opt/my env/bin/python", regions="us-,eu-west-1", ssh_from="192.0.2.1, 2001:db8::/32"
    )
    assert given.one("python", PROGRAM, "python3") == "/opt/my env/bin/python"
    assert given.many("regions", REGION, "us-") == ("us-", "eu-west-1")
    assert given.networks("ssh_from") == ("192.0.2.1/32", "2001:db8::/32")


@pytest.mark.parametrize(
    ("parse", "message"),
    [
        (lambda s: s.one("x", REGION, "a"), "'No!' is not valid"),
        (lambda s: s.many("x", REGION, "us-", "is no region"), "'No!' is no region"),
        (lambda s: s.networks("x"), "does not appear to be"),
        (lambda s: s.flag("x"), "'No!' is neither false nor true"),
        (lambda s: s.number("x", "1", 0, 2), "'No!' is not a whole number from 0 to 2"),
        (lambda s: s.seconds("x", "5s"), "No!"),
    ],
)
def test_an_error_names_the_setting(parse: Callable[[SettingTexts], object], message: str):
    with pytest.raises(InputError, match=re.escape(message)) as caught:
        parse(texts(owner="site aws", x="No!"))
    assert caught.value.place == "site aws: settings.x"
    assert caught.value.hint


def test_a_list_of_networks_is_not_empty_if_none_would_mean_all():
    assert texts(ssh_from=" ").networks("ssh_from") == ()
    with pytest.raises(InputError, match="there is no network"):
        texts(ssh_from=" ").networks("ssh_from", "0.0.0.0/0")


def test_a_duration_has_a_least_value():
    with pytest.raises(InputError, match="is less than 60 s") as caught:
        texts(keep="1s").seconds("keep", "14d", least=60.0)
    assert (caught.value.place, caught.value.hint) == ("settings.keep", "The default is 14d.")
