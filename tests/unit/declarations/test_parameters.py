"""What parameters become: words of a shell, values of SQL, lists, jobs of a matrix, times of a schedule."""

import subprocess
from pathlib import Path
from random import Random

import pytest

from gridmill.declarations import parse_declarations
from gridmill.declarations.shell import UnsafeError, fill_shell
from gridmill.domain.pipeline import Pipeline
from gridmill.domain.source import SqlSource
from gridmill.errors import PipelineError

HOSTILE = (
    *("O'Brien", "x' or '1'='1", "a b", "$(echo pwned)", "`echo pwned`", ";echo pwned;", "a\nb", "EOF", "\\"),
    *(
        "a\\",
        "\\'",
        '"',
        '"; echo pwned; "',
        "$HOME",
        "*",
        "~",
        "#x",
        "2",
        "cd",
        "case",
        "done",
        "",
        "\n",
        "''",
    ),
    *("!x", "a}b", "é", "&", "a=b", "-n", "%s", "\ta", "x\nEOF\necho pwned\n", "<", "\\n", "{a,b}", "1;2"),
)
PRINT = "printf '%s\\n' "
COMMANDS = {
    PRINT + "${x}": "{}",
    PRINT + "'${x}'": "{}",
    PRINT + '"${x}"': "{}",
    PRINT + "out-${x}.csv": "out-{}.csv",
    PRINT + '"it\'s ${x}"': "it's {}",
    PRINT + "'a\"'\"b'\"${x}": "a\"b'{}",
    "U=u; " + PRINT + '"$U${x}"': "u{}",
    "U=u; " + PRINT + "$U${x}": "u{}",
    PRINT + "${x}>/dev/stdout": "{}",
    "y=${x}; " + PRINT + '"$y"': "{}",
    "(" + PRINT + "${x})": "{}",
    "if true; then " + PRINT + "${x}; fi": "{}",
    "for i in ${x}; do " + PRINT + '"$i"; done': "{}",
    "case a in a) " + PRINT + "${x};; esac": "{}",
    "cat <<EOF\n${x}\nEOF": "{}",
    "cat <<'EOF'\n${x}\nEOF": "{}",
    "cat <<-EOF\n\t${x}\n\tEOF": "{}",
    "cat <<A <<'B' >/dev/null\nx ${x}\nA\ny '\nB\n" + PRINT + "${x}": "{}",
    "# don't ${x}\n" + PRINT + "${x}": "{}",
    "true # it's\n" + PRINT + "'${x}'": "{}",
    "echo $((1+2)) >/dev/null; " + PRINT + "${x}": "{}",
    PRINT + '"$${Z:-${x}}"': "{}",
    PRINT + "`printf %s ${x}`": "{}",
    PRINT + '"$(printf %s. ${x})"': "{}.",
    PRINT + '"$(case a in b) ;; a) printf %s. "${x}";; esac)"': "{}.",
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_value_in_a_command_is_printed_as_it_is_or_refused(command: str) -> None:
    refused = 0
    for value in HOSTILE:
        try:
            text = fill_shell(command, lambda _, value=value: value)
        except UnsafeError:
            refused += 1
            continue
        done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, check=False)
        assert done.stdout == COMMANDS[command].format(value) + "\n", (value, text, done.stderr)
    unsafe = "`" in command or "$${" in command
    assert unsafe or refused <= 4  # a line that would end a here-document


def test_random_values_are_printed_as_they_are() -> None:
    random = Random(1)
    for command in (PRINT + "a${x}", PRINT + "'${x}'", PRINT + '"${x}"', "cat <<EOF\n${x}\nEOF"):
        for _ in range(10):
            value = "".join(random.choices("'\"\\$`(){}#;&|<> \nab2~!=", k=8))
            text = fill_shell(command, lambda _, value=value: value)
            done = subprocess.run(["/bin/sh", "-c", text], capture_output=True, text=True, check=False)
            assert done.stdout == ("a" if command.endswith("a${x}") else "") + value + "\n", (value, text)


def parse(text: str, **values: object) -> Pipeline:
    (pipeline,) = parse_declarations(text, file="p.yaml", set_values=values)
    assert isinstance(pipeline, Pipeline)
    return pipeline


def refused(text: str, **values: object) -> str:
    with pytest.raises(PipelineError) as raised:
        parse(text, **values)
    return f"{raised.value} {raised.value.hint}"


def job(body: str, parameters: str = "{x: 1}") -> str:
    return f"pipeline: p\nparameters: {parameters}\njobs:\n  a: {body}\n"


def command(text: str, parameters: str = "{x: 1}", **values: object) -> object:
    made = parse(job(f"\n    command: |-\n      {text}", parameters), **values).job("a").command
    assert made is not None
    return made.run


def test_plain_values_stand_as_they_are_and_raw_ones_are_pasted() -> None:
    assert command("run --rate ${x} -o ${x}.csv") == "run --rate 1 -o 1.csv"
    assert command("run ${x} ${x:raw}", "{x: a b}") == "run 'a b' a b"
    assert command("${x}", "{x: run a b}") == "run a b", "a text that is one reference is the value"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("echo \\${x}", "a backslash is not allowed before a parameter"),
        ("echo $((1 + ${x}))", "arithmetic needs whole numbers"),
        ("cat <<${x}\nEOF", "cannot be a parameter"),
        ("echo `echo ${x}`", "Write $(...) instead of backticks."),
        ("echo $'${x}'", "cannot be written safely"),
        ('echo "${x}', "the command ends within double quotes"),
        ("cat <<'EOF'\n${x}\nEOF", "would end the here-document"),
    ],
)
def test_what_cannot_be_made_safe_is_refused(text: str, said: str) -> None:
    value = "EOF" if "would end" in said else "a; b"
    with pytest.raises(UnsafeError) as raised:
        fill_shell(text, lambda _: value)
    assert said in f"{raised.value.message} {raised.value.hint}"


def query(text: str, parameters: str, **values: object) -> SqlSource:
    body = f"\n    sink: {{source: {{sql: {{url: 'sqlite:///x', query: \"{text}\"}}}}}}"
    sink = parse(job(body, parameters), **values).job("a").sink
    assert sink is not None
    assert sink.source.sql is not None
    return sink.source.sql


def test_a_query_keeps_its_references_and_has_their_values() -> None:
    made = query(
        "select * from t where a = '${who}' and b in ${n} and ${c:raw} = 1", "{who: x, n: [1, 2], c: k}"
    )
    assert made.query == "select * from t where a = '${who}' and b in ${n} and k = 1"
    assert made.parameters == {"who": "x", "n": (1, 2)}
    assert query("select '$${x}'", "{x: 1}").query == "select '${x}'"


@pytest.mark.parametrize(
    ("text", "parameters", "said"),
    [
        ("select $$ ${x} $$", "{x: 1}", "no value can be bound"),
        ("select t_${x}", "{x: 1}", "`${x}` is within a word"),
        ("select date '${x}'", "{x: a'b}", "cannot be written safely as a typed constant"),
        ("select 1 where a in ${x}", "{x: []}", "the list is empty"),
        ("select '${x}'", "{x: [a]}", "a list cannot be within quotes"),
        ("select '${from}' || '${to}'", "{from: 2013-01-02, to: 2013-01-01}", "is not before"),
    ],
)
def test_what_cannot_be_bound_is_refused(text: str, parameters: str, said: str) -> None:
    body = f"\n    sink: {{source: {{sql: {{url: 'sqlite:///x', query: \"{text}\"}}}}}}"
    assert said in refused(job(body, parameters))


def test_expressions_of_our_own_engine_get_literals() -> None:
    body = (
        "{dataset: {basis: {table: s, time: t}, features: {f: \"a = '${x}' or b = ${x} or c in ${n}\", "
        "g: '${x:raw} + 1', h: \"a = '%${x}'\"}}}\n  s: {sink: {source: any}}"
    )
    dataset = parse(job(body, '{x: "O\'Brien", n: [1, b]}')).job("a").dataset
    assert dataset is not None
    assert dataset.features["f"] == "a = 'O''Brien' or b = 'O''Brien' or c in (1, 'b')"
    assert dataset.features["g"] == "O'Brien + 1"
    assert dataset.features["h"] == "a = '%O''Brien'"


# lists and matrices

LISTS = "{l: [a, b c], n: [1, 2], e: []}"


def test_a_list_becomes_words_or_items() -> None:
    assert command("run ${l} --n ${n} ${e}", LISTS) == "run 'a' 'b c' --n '1' '2' "
    made = parse(job('{command: [run, "${l}", "${n}", end]}', LISTS))
    assert made.job("a").command.run == ("run", "a", "b c", "1", "2", "end")
    assert made.parameters == {"l": ("a", "b c"), "n": (1, 2), "e": ()}
    assert "cannot be a part of a word" in refused(job('{command: "run x${l}"}', LISTS))
    assert "cannot be used within double quotes" in refused(job("{command: 'run \"${l}\"'}", LISTS))
    assert "cannot be a part of a text" in refused(job('{command: [run, "x${l}"]}', LISTS))


@pytest.mark.parametrize("given", ["[x, 'y z']", "x,y z", ["x", "y z"], ("x", "y z")])
def test_a_list_is_given_as_yaml_or_with_commas(given: object) -> None:
    assert parse(job("{command: x}", LISTS), l=given).parameters["l"] == ("x", "y z")
    assert "expected a number" in refused(job("{command: x}", LISTS), n=given)


def test_a_matrix_makes_a_job_of_each_combination_and_whoever_needs_it_needs_all() -> None:
    made = parse(
        "pipeline: p\nparameters: {regions: [EU, us], model: z}\njobs:\n"
        "  train:\n    matrix: {region: '${regions}', model: [a, 1.5]}\n    command: run ${region} ${model}\n"
        "  other: {command: 'run ${model}'}\n"
        "  last: {needs: train, command: x}\n"
        "  one: {needs: [other, train-us-a], command: x}\n"
        "  pair: {matrix: {region: [eu, us]}, needs: ['train-${region}-a'], command: x}\n"
    )
    names = ("train-eu-a", "train-eu-1-5", "train-us-a", "train-us-1-5")
    assert [job.name for job in made.jobs] == [*names, "other", "last", "one", "pair-eu", "pair-us"]
    assert made.job("train-eu-1-5").command.run == "run EU 1.5"
    assert made.job("train-eu-1-5").matrix == {"region": "EU", "model": 1.5}
    assert made.job("other").command.run == "run z"
    assert made.job("last").needs == names
    assert made.job("one").needs == ("other", "train-us-a")
    assert made.job("pair-us").needs == ("train-us-a",)


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        ("{r: []}", "`r` needs a list"),
        ("{r: [[a]]}", "`r` needs a list"),
        ("{r: [a b, a-b]}", "two jobs would have the name `a-a-b`"),
        (
            "{r: [" + "x, " * 17 + "y], s: [" + "x, " * 16 + "y]}",
            "this matrix has 306 jobs; the limit is 256",
        ),
        ("{r: [a, b], unknown: '${nothing}'}", "there is no parameter `nothing`"),
        ("[a]", "expected fields"),
    ],
)
def test_a_matrix_that_is_none_is_refused(matrix: str, said: str) -> None:
    assert said in refused(job(f"{{matrix: {matrix}, command: x}}"))


# times of a schedule


def test_due_times_are_given_in_a_manual_run_and_are_formatted() -> None:
    text = job("{command: 'run ${due} ${due:%Y-%m-%d} ${due_before:%H}'}")
    said = refused(text)
    assert "`${due}` is a due time of a schedule" in said
    assert "--set due=" in said
    made = parse(text, due="2024-01-02T03:00:00+01:00", due_before="2024-01-01")
    assert made.job("a").command.run == "run 2024-01-02T03:00:00+01:00 2024-01-02 00"
    assert "nothing in the pipeline uses `${due}`" in refused(job("{command: x}"), due="2024-01-01")
    assert "is not a time" in refused(text, due="x", due_before="2024-01-01")
    assert parse(job("{command: 'run ${due}'}", "{due: 2024-01-01}")).job("a").command.run == "run 2024-01-01"


def test_a_command_that_names_the_variable_has_it() -> None:
    made = parse(job("{command: 'run $GRIDMILL_DUE'}"), due="2024-01-02")
    assert made.job("a").command.env == {"GRIDMILL_DUE": "2024-01-02"}
    assert "GRIDMILL" not in str(parse(job("{command: run}")).job("a").command.env)
    assert "is a due time of a schedule" in refused(job("{command: 'run $GRIDMILL_DUE_BEFORE'}"))


# what is given twice


def test_a_need_named_twice_and_an_unknown_field_are_refused(tmp_path: Path) -> None:
    text = "pipeline: p\njobs: {a: {command: x}, b: {needs: [a, a], command: x}}"
    assert "jobs.b.needs[1]: `b` needs `a` twice" in refused(text)
    assert "jobs.a.command.runn: there is no field `runn`" in refused(
        "pipeline: p\njobs: {a: {command: {run: x, runn: y}}}"
    )
