"""The HTML report: what leads it, what it shows of each job, and that it is bounded and harmless."""

import re
from base64 import b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import pytest
from tests.kit.report_views import (
    BEGAN,
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

from gridmill.domain.environment_build import BEGUN, ENDED, ENVIRONMENT
from gridmill.domain.pod_protocol import Event
from gridmill.domain.states import JobState, RunState
from gridmill.report.jobs import declared
from gridmill.report.render import render
from gridmill.report.svg import (
    FOLDED_FROM,
    Axes,
    DagBox,
    Series,
    dag,
    elided,
    folded,
    line_chart,
    tick_texts,
    ticks,
)

MEGABYTE = 1_000_000
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Tags, ids, links and text of a page; fails where tags are not closed in their order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.headers_without_scope = 0
        self._open: list[str] = []
        self.feed(text)
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        named = dict(attrs)
        self.tags.append(tag)
        self.ids += [named["id"]] if "id" in named else []
        self.links += [named["href"]] if "href" in named else []
        self.headers_without_scope += tag == "th" and "scope" not in named
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self._open, tag
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.text += f" {data}" if not {"style", "script"} & set(self._open) else ""


def words(page: str) -> str:
    return " ".join(Page(page).text.split())


def failing() -> str:
    broken = a_job(
        "clean", state=JobState.FAILED, message="exit code 1", hint="Install the package first.", begins=1.0
    )
    after = a_job("mail", needs=("clean",), state=JobState.SKIPPED, message="needs `clean` failed")
    view = a_run(a_job("fetch"), broken, after, state=RunState.FAILED)
    lines = logs("clean", *(f"line {n}" for n in range(60)), "ValueError: no number: 'n/a'")
    return render(view, (), logs=lines)


def test_a_failed_run_leads_with_the_error_the_end_of_its_log_and_the_hint():
    told = words(failing())
    order = [
        "clean failed",
        "exit code 1",
        "ValueError: no number",
        "Install the package first.",
        "line 59",
        "gridmill logs p-2 clean",
        "1 job skipped: mail",
        "gridmill resume p-2",
        "state, and why",
    ]
    places = [told.index(text) for text in order]
    assert places == sorted(places)
    assert "line 39 " not in told, "the end of the log, not all of it"


def test_a_run_in_which_nothing_ran_says_so_and_whose_results_stand():
    model = a_model("lstm")
    view = a_run(
        a_job("clean", state=JobState.UNCHANGED),
        a_job("lstm", state=JobState.UNCHANGED, artifacts=(model,)),
    )
    assert "No job was executed: 2 jobs unchanged." in words(render(view, ()))


def test_a_running_run_shows_what_is_being_built():
    job = a_job("clean", state=JobState.RUNNING)
    note = "building environment: pip install numpy (3 of 12 packages)"
    view = a_run(
        type(job)(
            job=job.job, attempts=job.attempts, progress={"phase": "environment", "done": 0, "note": note}
        ),
        state=RunState.ACTIVE,
    )
    assert note in words(render(view, ()))


def test_the_time_of_a_job_is_the_same_everywhere():
    view = a_run(
        a_job("load", takes=18.3), a_job("other", takes=2.0), a_job("use", needs=("load",), begins=18.3)
    )
    page = render(view, ())
    assert page.count("18.3 s") >= 4, "graph, table, timeline and critical path"
    assert "12.8 s" not in page, "what its process alone took"


def test_a_job_that_ran_and_found_nothing_new_has_its_time():
    ran = a_job("load", takes=12.3)
    looked = replace(ran, job=replace(ran.job, state=JobState.UNCHANGED))
    restored = replace(looked, attempts=())
    assert "12.3 s" in words(render(a_run(looked), ()))
    assert "12.3 s" not in words(render(a_run(restored), ())).partition("state, and why")[2]


def test_jobs_that_took_no_time_have_no_critical_path():
    ran = a_job("check", takes=1.5)
    restored = [replace(a_job(name, state=JobState.UNCHANGED), attempts=()) for name in ("load", "train")]
    assert "Critical path" not in words(render(a_run(ran, *restored), ()))


def test_rows_in_out_and_dropped_are_shown_with_reasons():
    told = words(render(a_run(a_job("features", artifacts=(a_dataset("features"),))), ()))
    assert "1,310 1,000 310" in told
    assert "dropped: 300 no label, 10 because features" in told


def test_metrics_are_compared_with_the_run_before_and_only_on_the_same_rows():
    old = a_model("gbdt", metrics={"validation_rmse": 3.0, "test_rmse": 2.5, "test_skill": 0.5})
    before = a_run(a_training("gbdt", old), number=1)
    view = a_run(a_training("gbdt", a_model("gbdt", 2)))
    told = words(render(view, (), (), before))
    assert "the change since run p-1" in told
    assert "−1 (was 3) better" in told
    assert "−0.25 (was 0.5) worse" in told
    assert "no change" in told
    other = a_run(a_training("gbdt", a_model("gbdt", 2, rows="others")))
    told = words(render(other, (), (), before))
    assert "better" not in told
    assert "was evaluated on other rows" in told
    same = words(render(a_run(a_training("gbdt", old)), (), (), before))
    assert "the same version as in the previous run" in same


def test_a_model_has_importance_residuals_settings_and_learning_curves():
    events = curve(
        "gbdt", train_loss=[3.0, 2.0, 1.0], validation_loss=[3.0, 2.5, 2.4], own_f1=[0.1, 0.2, 0.3]
    )
    page = render(a_run(a_training("gbdt", a_model("gbdt"))), events)
    told = words(page)
    assert (
        "Permutation importance, measured once on 100 validation rows (seed 0). The 15 largest of 30." in told
    )
    assert "2 features were not measured: the time limit of 1.0 s was reached." in told
    assert "prediction − truth on 100 test rows" in told
    assert "learning_rate 0.1235" in told
    assert "Learning: loss" in told
    assert "Learning: own_f1" in told
    assert "trees: 77" in told
    assert "0.12345678901234567" not in page


def test_a_chart_of_trials_has_whole_ticks_and_titles():
    chart = line_chart(
        [Series(name="rmse", points=[(0.0, 1.0), (1.0, 2.0), (2.0, 1.5)], dots=True)],
        Axes(x="trial", y="validation rmse", whole=True),
    )
    assert re.findall(r'<div class="x-labels">(.*?)</div>', chart) == [
        '<span style="left:0.0%" class="first">0</span><span style="left:50.0%" data-minor>1</span>'
        '<span style="left:100.0%" class="last">2</span>'
    ]
    assert '<div class="x-title">trial</div>' in chart
    assert '<div class="y-title">validation rmse</div>' in chart


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.4321, 0.4324, ["0.4321", "0.4322", "0.4323", "0.4324"]),
        (-5.0, 5.0, ["-4", "-2", "0", "2", "4"]),
        (0.0, 3e9, ["0", "1,000,000,000", "2,000,000,000", "3,000,000,000"]),
    ],
)
def test_ticks_have_as_many_digits_as_tell_them_apart(low, high, texts):
    assert tick_texts(ticks(low, high)) == texts


def test_every_text_of_a_user_is_escaped_and_the_page_is_well_formed():
    model = a_model(HOSTILE, **{"search": {"metric": HOSTILE, "best": 0, "trials": [TRIAL]}})
    hostile = a_job(
        HOSTILE, state=JobState.FAILED, message=HOSTILE, hint=HOSTILE, artifacts=(a_dataset(HOSTILE),)
    )
    view = a_run(
        hostile,
        a_training(f"{HOSTILE}2", model, needs=(HOSTILE,)),
        state=RunState.FAILED,
        parameters={HOSTILE: HOSTILE},
        message=HOSTILE,
    )
    events = curve(f"{HOSTILE}2", **{HOSTILE: [1.0, 2.0]})
    page = Page(render(view, events, logs=logs(HOSTILE, HOSTILE)))
    assert HOSTILE in page.text
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", one) for one in page.ids)
    assert not {"img", "iframe", "object", "link"} & set(page.tags)
    assert page.tags.count("script") == 1, "the page's own"
    assert all(link.startswith("#") for link in page.links)


TRIAL = {"number": 0, "value": 1.0, "parameters": {HOSTILE: HOSTILE}, "seconds": 1.0}


def test_the_policy_allows_one_script_by_the_hash_of_its_text():
    page = render(a_run(a_job("</time><script>alert(1)</script>")), ())
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL)
    allowed = re.findall(r"'sha256-([^']+)'", page)
    assert [b64encode(sha256(text.encode()).digest()).decode() for text in scripts] == allowed
    assert "script-src 'sha256-" in page
    assert "unsafe-eval" not in page


def test_times_are_in_utc_for_readers_without_scripts():
    run = a_run(a_job("load"), due=BEGAN - 13.0)
    page = render(run, ())
    times = re.findall(r'<time datetime="([^"]+)">([^<]+)</time>', page)
    assert times == [
        ("2023-11-14T22:13:20Z", "2023-11-14 22:13:20 UTC"),
        ("2023-11-14T22:13:07Z", "2023-11-14 22:13:07 UTC"),
    ]
    assert "22:13:20 UTC by its schedule, due 2023-11-14 22:13:07 UTC" in words(page)


def test_links_lead_somewhere_and_ids_are_unique():
    for view, events, ends in (large_run(80), (a_run(a_training("m", a_model("m"))), [], {})):
        page = Page(render(view, events, logs=ends))
        assert len(page.ids) == len(set(page.ids))
        assert {link[1:] for link in page.links} <= set(page.ids)
        assert page.headers_without_scope == 0


def test_secrets_of_the_environment_and_the_network_stay_out():
    page = render(a_run(a_job("clean")), ())
    assert "secret-value" not in page
    assert "TOKEN (values are not shown)" in page
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=\"(?!#)", page)


@pytest.mark.parametrize("count", [500, 2000])
def test_a_report_is_at_most_a_megabyte(count):
    view, events, ends = large_run(count)
    page = render(view, events, logs=ends)
    assert len(page.encode()) <= MEGABYTE * count / 500
    assert f"{count:,} jobs" in page


def test_hundreds_of_alike_jobs_are_one_box_with_the_worst_state():
    boxes = [DagBox(name="load", kind="sink", state="succeeded", needs=())]
    boxes += [
        DagBox(
            name=f"part-{n}",
            kind="command",
            state="failed" if n == 7 else "succeeded",
            needs=("load",),
            link=f"{n}",
        )
        for n in range(300)
    ]
    boxes.append(DagBox(name="end", kind="command", state="skipped", needs=tuple(b.name for b in boxes[1:])))
    shown = folded(boxes)
    assert [(box.count, box.state) for box in shown] == [(1, "succeeded"), (300, "failed"), (1, "skipped")]
    assert shown[1].link == "7"
    assert "300 jobs · 1 failed" in dag(boxes)
    assert len(dag(boxes)) < 3000


def test_a_graph_of_too_many_different_jobs_is_not_drawn():
    names = [f"{chr(97 + n % 26)}{chr(97 + n // 26)}x" for n in range(100)]
    boxes = [
        DagBox(name=name, kind="command", state="succeeded", needs=tuple(names[n - 1 : n]))
        for n, name in enumerate(names)
    ]
    assert len(boxes) > FOLDED_FROM
    assert dag(boxes) == ""


@pytest.mark.parametrize("text", ["short", "a_name_that_is_much_too_long_for_a_box", "漢" * 40, ""])
def test_a_name_that_is_too_long_loses_its_middle(text):
    shown = elided(text, 20)
    assert sum(2 if letter == "漢" else 1 for letter in shown) <= 20
    assert shown == text or "…" in shown


def test_the_head_has_the_code_and_the_parameters():
    told = words(render(a_run(a_job("clean"), parameters={"day": "2024-03-01", "some": ("a", "b")}), ()))
    assert "bundle 0123456789ab , Git commit c0ffeec0ffee , folder /home/me/p" in told
    assert "day=2024-03-01, some=a, b" in told


def test_what_a_job_declares_is_shown_without_defaults_and_with_units():
    text = declared(a_job("clean").job.job)
    assert "timeout: 5m" in text
    assert "run: echo clean" in text
    assert "retries" not in text


def test_the_time_that_an_environment_took_is_shown():
    def line(text, at):
        return Event(
            time=BEGAN + at,
            type=ENVIRONMENT,
            run_id="p-2",
            job="clean",
            attempt_id="p-2.clean.1",
            body={"stream": "pod", "text": f"{text} abc\n"},
        )

    page = render(a_run(a_job("clean", takes=100.0)), [line(BEGUN, 1.0), line(ENDED, 89.0)])
    assert "environment built in 1 m 28 s" in page
