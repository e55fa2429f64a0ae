"""Reports in a real browser: nothing is wider than the screen, nothing is cut off, and texts have
contrast."""

from collections.abc import Iterator

import pytest

from gridmill.domain.states import JobState, RunState
from gridmill.report.render import render
from tests.kit.browser import Page, find_browser, open_browser
from tests.kit.report_views import (
    HOSTILE,
    a_dataset,
    a_job,
    a_model,
    a_run,
    a_training,
    curve,
    large_run,
    logs,
)

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(find_browser() is None, reason="Chromium is not installed (apt-get install chromium)"),
]
WIDTHS = (390, 768, 1440)

TOO_WIDE = """[...document.querySelectorAll('main *:not(title)')].filter(one => {
  const box = one.getBoundingClientRect();
  return !one.closest('.scroll') && box.width && box.right > document.documentElement.clientWidth + 1
}).map(one => one.outerHTML.slice(0, 120))"""
CUT_OFF = """[...document.querySelectorAll('main *:not(title)')].filter(one => {
  const style = getComputedStyle(one);
  const cut = one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1;
  return one.clientWidth && cut && (style.overflowX == 'hidden' || style.overflowX == 'clip'
    || style.textOverflow == 'ellipsis' || (style.overflowX == 'auto' && one.tabIndex != 0))
}).map(one => one.outerHTML.slice(0, 120))"""
SMALL_TEXT = """[...document.querySelectorAll('main *:not(title)')].filter(one =>
  [...one.childNodes].some(node => node.nodeType == 3 && node.textContent.trim())
  && parseFloat(getComputedStyle(one).fontSize) * (one.ownerSVGElement?.getScreenCTM()?.a ?? 1) < 11.9
).map(one => one.outerHTML.slice(0, 120))"""
LOW_CONTRAST = """(() => {
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const linear = value => value <= .03928 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4;
  const light = colour => {
    const [r, g, b] = colour.map(value => linear(value / 255));
    return .2126 * r + .7152 * g + .0722 * b
  };
  const behind = one => {
    for (; one; one = one.parentElement) {
      const colour = rgb(getComputedStyle(one).backgroundColor);
      if (colour.length == 3 || colour[3] > 0) return colour.slice(0, 3)
    }
    return [255, 255, 255]
  };
  const ratio = one => {
    const style = getComputedStyle(one), front = one.ownerSVGElement ? style.fill : style.color;
    const [a, b] = [light(rgb(front).slice(0, 3)), light(behind(one))].sort((a, b) => b - a);
    return (a + .05) / (b + .05)
  };
  const hasText = one => [...one.childNodes].some(node => node.nodeType == 3 && node.textContent.trim());
  const shown = [...document.querySelectorAll('main *:not(title)')].filter(hasText);
  return shown.filter(one => ratio(one) < 4.5).map(one => one.outerHTML.slice(0, 120))
})()"""


def pages() -> dict[str, str]:
    """Reports of all sorts of runs."""
    long = "a_name_without_any_break_in_it_" * 5
    failed = a_job("clean", state=JobState.FAILED, message=f"exit code 1 {long}", hint=f"Do {long}")
    after = a_job("mail", needs=("clean",), state=JobState.SKIPPED, message="needs `clean` failed")
    models = [a_model(f"model_{n}", n + 1) for n in range(12)]
    trained = [a_training(f"model_{n}", one, needs=("features",)) for n, one in enumerate(models)]
    data = a_job("features", artifacts=(a_dataset("features", columns=80),))
    events = curve("model_0", train_loss=[1 / n for n in range(1, 50)], own_f1=[0.1, 0.2])
    hostile = a_job(HOSTILE, artifacts=(a_dataset(long),))
    large, large_events, large_ends = large_run(500)
    return {
        "failed": render(
            a_run(failed, after, state=RunState.FAILED), (), logs=logs("clean", f"{long} {long}", "x" * 900)
        ),
        "models": render(a_run(data, *trained), events, (), a_run(*trained[:3], number=1)),
        "hostile": render(a_run(hostile, a_job(long), parameters={HOSTILE: long}), ()),
        "empty": render(a_run(), ()),
        "large": render(large, large_events, logs=large_ends),
    }


@pytest.fixture(scope="module")
def shown() -> dict[str, str]:
    return pages()


@pytest.fixture(scope="module")
def browser() -> Iterator[Page]:
    with open_browser() as page:
        yield page


@pytest.mark.parametrize("name", ["failed", "models", "hostile", "empty", "large"])
def test_a_report_fits_every_screen_in_light_and_dark(browser, shown, tmp_path, name):
    text = shown[name]
    file = tmp_path / f"{name}.html"
    file.write_text(text)
    for width in WIDTHS:
        for dark in (False, True):
            browser.open(file, width=width, dark=dark)
            browser.run("document.querySelectorAll('details').forEach(one => one.open = true)")
            where = f"{name} at {width} px, {'dark' if dark else 'light'}"
            assert browser.run("document.documentElement.scrollWidth <= innerWidth"), where
            for script in (TOO_WIDE, CUT_OFF, SMALL_TEXT, LOW_CONTRAST):
                assert browser.run(script) == [], where
    assert browser.errors == []
    assert [url for url in browser.requests if not url.startswith("file:")] == []


TIMES = "[...document.querySelectorAll('time')].map(one => one.textContent)"
BEGAN_THERE = {
    "Europe/Berlin": "2023-11-14 23:13:20 +01:00 (Europe/Berlin)",
    "America/St_Johns": "2023-11-14 18:43:20 -03:30 (America/St_Johns)",
}
IN_UTC = "2023-11-14 22:13:20 UTC"


def test_times_are_in_the_zone_of_the_reader_and_in_utc_without_scripts(browser, tmp_path):
    file = tmp_path / "times.html"
    file.write_text(render(a_run(a_job("</time><script>document.title = 'taken'</script>")), ()))
    begin = len(browser.requests)
    for zone, text in BEGAN_THERE.items():
        browser.set_zone(zone)
        browser.open(file)
        assert browser.run(TIMES) == [text]
        assert browser.run("document.querySelector('time').title") == IN_UTC
        assert browser.run("document.title") == "p-2 succeeded · Gridmill"
        assert browser.run("document.scripts.length") == 1
        browser.open(file, scripts=False)
        assert browser.run(TIMES) == [IN_UTC]
    browser.set_zone("")
    assert browser.errors == []
    assert all(url.startswith("file:") for url in browser.requests[begin:])


def test_the_policy_of_a_report_stops_every_other_script(browser, tmp_path):
    file = tmp_path / "injected.html"
    page = render(a_run(a_job("load")), ())
    file.write_text(page.replace("</main>", "<script>document.title = 'taken'</script></main>"))
    browser.open(file)
    assert browser.run("document.title") == "p-2 succeeded · Gridmill"
    assert browser.errors, "the browser reports that it refused the script"
    browser.errors.clear()


def test_a_report_is_printed_without_cut_edges(browser, tmp_path):
    file = tmp_path / "report.html"
    file.write_text(pages()["models"])
    browser.open(file)
    browser.print_to(tmp_path / "report.pdf")
    content = (tmp_path / "report.pdf").read_bytes()
    assert content.startswith(b"%PDF")
    browser.media("print", width=690)
    assert browser.run("document.documentElement.scrollWidth <= innerWidth + 1")
