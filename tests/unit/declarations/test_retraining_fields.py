"""The fields of retraining: schedules by drift, and the condition under which an alias moves."""

import pytest

from gridmill.declarations import parse_declarations
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.promotion import PromotionSpec
from gridmill.domain.schedule import DriftTrigger
from gridmill.errors import PipelineError

JOBS = """
jobs:
  f: {dataset: {sql: "select 1 as x, 2 as y"}}
  m: {training: {dataset: f, model: gbdt}}
  check:
    prediction:
      dataset: f
      models: [m]
      promote: PROMOTE
"""


def parsed(schedule: str = "{every: 1d}", promote: str = "w/m@champion", models: str = "[m]") -> Pipeline:
    jobs = JOBS.replace("PROMOTE", promote).replace("[m]", models)
    (pipeline,) = parse_declarations(f"pipeline: w\nschedule: {schedule}\n{jobs}")
    assert isinstance(pipeline, Pipeline)
    return pipeline


def test_an_alias_alone_is_the_whole_condition():
    prediction = parsed().job("check").prediction
    assert prediction is not None
    assert prediction.promote == PromotionSpec(alias="w/m@champion")
    assert parsed().job("check").external_names == ("w/m@champion",)


def test_a_condition_has_a_margin_with_its_unit_a_period_and_an_approval():
    fields = "{alias: w/m@champion, margin: 2%, period: 30d, min_rows: 1k, approve: true}"
    prediction = parsed(promote=fields).job("check").prediction
    assert prediction is not None
    assert prediction.promote == PromotionSpec(
        alias="w/m@champion", margin="2%", period_seconds=30 * 86_400.0, min_rows=1000, approve=True
    )


@pytest.mark.parametrize(
    ("schedule", "text"),
    [
        ("{drift: rain}", "drift of service rain (pause 1d)"),
        ("{every: 1d, drift: {service: rain, pause: 6h}}", "every 86400 s; drift of service rain (pause 6h)"),
    ],
)
def test_a_drift_stands_alone_or_beside_times(schedule, text):
    spec = parsed(schedule).schedule
    assert spec is not None
    assert isinstance(spec.drift, DriftTrigger)
    assert spec.text == text


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schedule": "{zone: UTC}"}, "2: schedule: needs one of every, cron, continuous, drift"),
        ({"schedule": "{continuous: true, drift: rain}"}, "2: schedule.drift: a continuous schedule cannot"),
        ({"schedule": "{drift: {service: rain, pause: 0}}"}, "2: schedule.drift.pause: `pause` must be 1s"),
        ({"promote": "champion"}, "11: jobs.check.prediction.promote: 'champion' is not an alias of a model"),
        ({"promote": "w/o@champion"}, "`w/o@champion` is an alias of `w/o`, but the model is `w/m`"),
        ({"promote": "{alias: w/m@champion, margin: 2x}"}, "promote.margin: '2x' is not a margin"),
        ({"models": "[m, v/m]"}, "a prediction with `promote` has one model"),
    ],
)
def test_a_mistake_names_its_line_and_field(change, message):
    with pytest.raises(PipelineError) as error:
        parsed(**change)
    assert message in str(error.value)


def test_a_pipeline_with_due_times_has_no_schedule_by_drift():
    with pytest.raises(PipelineError, match="a schedule by drift has no due times"):
        parse_declarations(
            "pipeline: p\nschedule: {every: 1d, drift: rain}\njobs: {a: {command: 'echo ${due}'}}",
            awaiting=True,
        )
