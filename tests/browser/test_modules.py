"""The pure parts of the page, each by what it gives, in the browser that they run in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page

from tests.browser.visits import Visit, module_address
from tests.fakes.recorded_cluster import RecordedCluster

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def page(chromium: Any, fresh: RecordedCluster) -> Iterator[Page]:
    """One page for all: no test changes anything in it."""
    here = Visit(chromium, fresh, timezone_id="Asia/Kolkata")
    here.page.get_by_role("heading", name="Cluster").wait_for()
    yield here.page
    here.close()


Call = Callable[..., Any]


@pytest.fixture
def call(page: Page) -> Call:
    """Evaluates an expression in which ``m`` is a module and ``a`` what else is given."""

    def call(name: str, expression: str, given: Any = None) -> Any:
        script = f"async ([address, a]) => {{ const m = await import(address); return {expression}; }}"
        return page.evaluate(script, [module_address(page, name), given])

    return call


def results(call: Call, name: str, function: str, *given: Any) -> list[Any]:
    """What a function gives for each of the arguments."""
    return list(call(name, f"a.map((one) => m.{function}(one))", list(given)))


def test_the_horizontal_axis_of_a_chart_is_never_so_narrow_that_it_means_nothing(call: Call) -> None:
    extents = [[100, 100, "time"], [100, 110, "time"], [100, 190, "time"], [7, 7, "version"], [7, 9, "version"]]
    found = call("charts/plot.js", "a.map((one) => m.around(...one))", extents)
    assert found == [[70, 100], [80, 110], [100, 190], [6, 7], [7, 9]]


def test_workers_of_a_span_are_whole_and_points_that_cannot_be_drawn_are_said(call: Call) -> None:
    """``at work`` was drawn as 0.8, and a curve of NaN was an empty chart without a word."""
    spans = {"points": [[1, 0.8, 0, 1], [2, 2], [3, "NaN"], [4, None], [5, "Infinity"]]}
    drawn = call("charts/line.js", "m.whole(a)", spans)
    assert drawn["points"] == [[1, 1], [2, 2], [3, "NaN"], [4, None], [5, "Infinity"]]
    assert call("charts/line.js", "m.saidOfOdd(m.oddPoints(a))", spans) == "2 points are NaN or infinite"


def test_the_last_label_of_the_time_axis_has_room(call: Call) -> None:
    script = "(({ font, text }) => { const c = document.createElement('canvas').getContext('2d'); c.font = font;"
    script += " return c.measureText(text).width / 2 <= m.PADDING[1]; })({ font: m.FONT, text: a })"
    assert all(call("charts/plot.js", script, text) for text in ("00:00:00", "12-31"))


def test_errors_are_told_as_sentences(call: Call) -> None:
    """The login said "the token is not valid give another one"."""
    errors = [{"message": "the token is unknown", "fix": "give another one"}, {"message": "It is over.", "fix": ""}]
    found = results(call, "ui/format.js", "sentences", *errors)
    assert found == ["the token is unknown. Give another one.", "It is over."]


def test_numbers(call: Call) -> None:
    name = "ui/format.js"
    assert results(call, name, "count", 0, 1234567, -12, None, "NaN") == ["0", "1,234,567", "-12", "–", "–"]
    assert results(call, name, "compact", 12, 9999.5, 1234567, 2.5e9) == ["12", "10,000", "1.23M", "2.5B"]
    assert results(call, name, "measure", 0.0123456, 12.34567, 1234.5, 1e-7, 0, "NaN", None) == [
        *("0.01235", "12.35", "1,235", "1.00e-7", "0", "NaN", "–")
    ]
    assert results(call, name, "percent", 0, 0.0004, 0.4567, 0.9999, 1, None) == [
        *("0 %", "0.0 %", "45.7 %", "100 %", "100 %", "–")
    ]
    assert results(call, name, "bytes", 0, 1023, 1024, 1536, 200 << 20, 5 << 60) == [
        *("0 B", "1023 B", "1.0 KiB", "1.5 KiB", "200 MiB", "5120 PiB")
    ]
    assert call(name, "[m.plural(1, 'worker'), m.plural(1000, 'worker'), m.plural(0, 'entry', 'entries')]") == [
        *("1 worker", "1,000 workers", "0 entries")
    ]


def test_durations(call: Call) -> None:
    name = "ui/format.js"
    shown = {
        0: "0 s",
        4e-6: "4 µs",
        2.2e-4: "220 µs",
        0.35: "350 ms",
        9.96: "10 s",
        59.4: "59 s",
        59.6: "1 min",
        200: "3 min 20 s",
        3599.6: "1 h",
        4800: "1 h 20 min",
        7199: "2 h",
        86_399: "1 d",
        183_600: "2 d 3 h",
        -5: "−5 s",
    }
    assert dict(zip(shown, results(call, name, "duration", *shown), strict=True)) == shown
    assert results(call, name, "relative", 0.4, 12.4, 59.7, 3600, -180, None) == [
        *("now", "12 s ago", "1 min ago", "1 h ago", "in 3 min", "–")
    ]


def test_moments_are_those_of_the_readers_zone(call: Call) -> None:
    name, at = "ui/format.js", "2026-01-31T18:40:05.250Z"
    assert call(name, "[m.exact(a), m.day(a), m.clock(a), m.exact('never')]", at) == [
        *("2026-02-01 00:10:05.250 UTC+05:30", "2026-02-01", "00:10:05", "")
    ]


def test_addresses(call: Call) -> None:
    tried = {
        "": ["cluster", {}, {}, []],
        "#/jobs?q=a%20b&state=X&state=Y": ["jobs", {}, {"q": "a b", "state": "Y"}, ["X", "Y"]],
        "#/jobs/one-1/logs?role=ps": ["job", {"id": "one-1", "tab": "logs"}, {"role": "ps"}, []],
        "#/jobs/one-1/stacks": ["stacks", {"id": "one-1"}, {}, []],
        "#/jobs/a%2Fb": ["job", {"id": "a/b"}, {}, []],
        "#/jobs/%": [None, {}, {}, []],
        "#/nowhere/at/all": [None, {}, {}, []],
    }
    paths = call("address.js", "a.map((one) => m.parseAddress(one).path)", list(tried))
    asked = call(
        "address.js",
        "a.map((one) => m.parseAddress(one)).map(({ query, all }) => [query, all('state')])",
        list(tried),
    )
    views = call(
        "router.js", "a.map((one) => m.routeOf(one)).map(({ route, params }) => [route && route.name, params])", paths
    )
    found = [view + query for view, query in zip(views, asked, strict=True)]
    assert dict(zip(tried, found, strict=True)) == tried
    assert call("address.js", "m.href('/jobs', {q: 'a b', state: ['X', ''], none: null, off: false})") == (
        "#/jobs?q=a+b&state=X"
    )
    assert call("api.js", "m.url('/jobs', {page_token: 'a/b+=', state: [], limit: 0, q: ''})") == (
        "/v1/jobs?page_token=a%2Fb%2B%3D&limit=0"
    )


def test_messages_of_a_stream_however_they_are_cut(call: Call) -> None:
    text = (
        ": alive\n\nid: 7\nevent: job\ndata: {\n\nretry: 5\n\ndata: one\ndata:two\r\n\r\nevent: x\n\n"
        "id: 9\nodd: 1\ndata: end\n\nid: 10\ndata: unfinished"
    )
    whole = [
        {"id": "7", "event": "job", "data": "{"},
        {"id": "", "event": "message", "data": "one\ntwo"},
        {"id": "9", "event": "message", "data": "end"},
    ]
    parse = """(() => { const parser = new m.EventParser(); const found = [];
      for (let at = 0; at < a[0].length; at += a[1]) found.push(...parser.push(a[0].slice(at, at + a[1])));
      return found; })()"""
    for size in (1, 2, 3, 7, len(text)):
        plain = text.replace("\r\n", "\n") if size < len(text) else text
        assert call("live.js", parse, [plain, size]) == whole, size


def test_a_chart_as_csv_has_a_row_for_each_place_and_a_column_for_each_curve(call: Call) -> None:
    curves = [
        {"label": "training", "points": [[10, 0.5, 0.1, 0.9], [2, "NaN"], [3, None]]},
        {"label": '=a "b", c', "points": [[2, 7]]},
    ]
    wanted = """version,training,"'=a ""b"", c"\n2,NaN,7\n3,,\n10,0.5,\n"""
    assert call("charts/plot.js", "m.csvOf(a, 'version')", curves) == wanted
    time = [{"label": "loss", "points": [[1_700_000_000, 1]]}]
    assert call("charts/plot.js", "m.csvOf(a, 'time')", time) == "time,loss\n2023-11-14T22:13:20.000Z,1\n"


def test_values_of_jobs_are_sorted_and_filtered_as_the_command_line_does(call: Call) -> None:
    def job(name: str, auc: Any, **spec: Any) -> dict[str, Any]:
        return {"id": name, "status": {"metrics": {} if auc is None else {"auc": auc}}, "spec": spec}

    jobs = [
        job("a", 0.5, labels={"team": "x"}, optimizer_params={"lr": 0.1}),
        job("b", None, num_epochs=3),
        job("c", 0.75, labels={"team": "y"}, model_params={"lr": "0.01"}),
        job("d", "NaN"),
    ]
    order = "(a[0], m.inOrderOf(a[0], a[1]).map((one) => one.id).join(''))"
    for sort, wanted in (
        ("metric:auc", "acbd"),
        ("-metric:auc", "cabd"),
        ("param:lr", "cabd"),
        ("-label:team", "cabd"),
    ):
        assert call("views/jobs/values.js", order, [jobs, sort]) == wanted, sort
    kept = "a[0].filter((one) => m.holds(one, m.conditionOf(a[1]))).map((one) => one.id).join('')"
    for text, wanted in (
        ("metric:auc>=0.75", "c"),
        ("label:team!=x", "c"),
        ("param:lr<0.1", "c"),
        ("spec:num_epochs=3", "b"),
    ):
        assert call("views/jobs/values.js", kept, [jobs, text]) == wanted, text
    assert call("views/jobs/values.js", "m.conditionOf(a)", "auc>1") is None
    assert call("views/jobs/values.js", "m.offeredKeys(a)", jobs) == ["label:team", "metric:auc", "param:lr"]
    assert call("views/jobs/values.js", "m.keysOf(a)", "metric:auc, x,param:lr,metric:auc") == [
        "metric:auc",
        "param:lr",
    ]
    best = [["auc", [0.5, 0.75]], ["val_loss", [0.5, 0.75, "NaN"]], ["odd", [1, 2]], ["auc", [1]]]
    assert call("views/jobs/values.js", "a.map((one) => m.bestOf(...one))", best) == [0.75, 0.5, None, None]


def test_points_of_long_spans_give_way_to_finer_ones(call: Call) -> None:
    points = [[0, 1], [60, 2], [120, 3], [65, 4], [70, 5], [75, 6]]
    assert call("series.js", "m.inOrder(a, 74)", points) == [[0, 1], [60, 2], [65, 4], [70, 5]]
    read = [{"name": "loss", "unit": "", "points": [[1, 5], [2, 4]]}]
    joined = "[...m.joined(a, new Map([['loss', [[2, 9], [3, 3]]], ['new', [[1, 1]]]])).values()]"
    assert call("series.js", joined, read) == [
        {"name": "loss", "unit": "", "points": [[1, 5], [2, 4], [3, 3]]},
        {"name": "new", "unit": "", "points": [[1, 1]]},
    ]


def test_what_streams_tell_is_thinned_and_bounded(call: Call) -> None:
    feed = """(() => { const told = new Map();
      for (let n = 0; n < a; n += 1) m.append(told, { status: { model_version: n, loss: n } }, "version");
      m.append(told, { status: { model_version: 3, loss: 1 } }, "version");
      m.append(told, { status: { model_version: "NaN", loss: 1 } }, "version");
      const points = told.get("loss");
      return [points.length, points[0][0], points.at(-1)[0], told.has("learning_rate")]; })()"""
    assert call("series.js", feed, 10) == [10, 0, 9, False]
    assert call("series.js", feed, 1500) == [1200, 300, 1499, False]
    close = """(() => { const told = new Map();
      for (const s of [0, 0.4, 1.1, 1.5, 2.2]) m.append(told, { finished_at: new Date(1e12 + s * 1000).toISOString(),
        target_workers: s, status: { loss: s } }, "time");
      return [told.get("loss").map((one) => one[1]), told.get("workers.target").map((one) => one[1])]; })()"""
    assert call("series.js", close) == [[0, 1.1, 2.2], [0, 0.4, 1.1, 1.5, 2.2]]


def test_what_follows_from_a_job(call: Call) -> None:
    at_work, ended = {"state": "running"}, {"state": "ended"}
    jobs = [{"status": {"workers": [at_work, ended]}}, {"status": {"workers_present": 7}}, {"status": {}}, {}]
    assert results(call, "facts.js", "workersOf", *jobs) == [1, 7, 0, 0]
    progress = {"records_done": 5, "records_total": 20}
    assert results(call, "facts.js", "fractionOf", {"status": {"progress": progress}}, {"status": {}}) == [0.25, None]
    eta = {"eta_seconds": 61.2, "eta_low_seconds": 30, "eta_high_seconds": 90}
    assert results(
        call, "facts.js", "endOf", {"state": "RUNNING", "status": eta}, {"state": "FAILED", "status": eta}
    ) == [*({"text": "1 min 1 s", "band": "30 s – 1 min 30 s"}, None)]


def test_a_ledger_takes_the_epochs_that_a_stream_tells(call: Call) -> None:
    def epoch(number: int, committed: int) -> dict[str, int]:
        parts = {"committed": committed, "leased": 0, "skipped": 0, "todo": 10 - committed}
        return {"epoch": number, "planned": 10, **parts}

    read = {"unit": "records", "epochs": [epoch(0, 10), epoch(1, 2), epoch(2, 0)], "total": {"planned": 30}}
    told = {"unit": "records", "epochs": [epoch(1, 10), epoch(2, 3)], "total": {"planned": 30, "committed": 23}}
    fresh = call("facts.js", "m.freshLedger(...a)", [read, told])
    assert fresh == {**told, "epochs": [epoch(0, 10), epoch(1, 10), epoch(2, 3)]}
    assert call("facts.js", "m.freshLedger(...a)", [read, None]) == read
    assert call("facts.js", "m.freshLedger(...a)", [read, {**told, "total": {"planned": 0}}]) == read
    assert call("facts.js", "m.isStale(...a)", [fresh, told]) is False
    assert call("facts.js", "m.isStale(...a)", [fresh, None]) is False
    left_out = {**told, "epochs": [epoch(2, 3)]}
    assert call("facts.js", "m.isStale(...a)", [call("facts.js", "m.freshLedger(...a)", [read, left_out]), left_out])


def test_a_list_takes_what_a_stream_tells(call: Call) -> None:
    jobs = [{"id": "a", "state": "RUNNING", "n": 1}, {"id": "b", "state": "RUNNING", "n": 1}]
    told = [
        {"event": "job", "data": {"id": "a", "state": "RUNNING", "n": 2}},
        {"event": "cluster", "data": {}},
        {"event": "deleted", "data": {"id": "b"}},
    ]
    merged = call("views/jobs.js", "m.mergeJobs(...a)", [jobs, told])
    assert merged == {"jobs": [{"id": "a", "state": "RUNNING", "n": 2}], "reload": False}
    for event in (
        {"event": "job", "data": {"id": "new", "state": "QUEUED"}},
        {"event": "job", "data": {"id": "a", "state": "FAILED"}},
        {"event": "reset", "data": {}},
    ):
        assert call("views/jobs.js", "m.mergeJobs(...a).reload", [jobs, [event]]) is True, event
    stand = "(() => { const seen = new Map(); return a.map((one) => m.standing(seen, [one])); })()"
    running = {"event": "job", "data": {"id": "a", "state": "RUNNING", "target_workers": 2, "priority": 0}}
    wider = {"event": "job", "data": {**running["data"], "target_workers": 3}}
    assert call("views/cluster.js", stand, [running, running, wider, wider, {"event": "reset"}]) == [
        *(True, False, True, False, True)
    ]


def test_what_is_typed_becomes_a_specification(call: Call) -> None:
    properties = {
        "type": {"type": "string", "enum": ["training"], "x-types": ["training", "evaluation"]},
        "num_epochs": {"type": "integer", "default": 1, "x-types": ["training"]},
        "name": {"type": "string", "default": "", "x-types": ["training", "evaluation"]},
        "labels": {
            "type": "object",
            "default": {},
            "additionalProperties": {"type": "string"},
            "x-types": ["training"],
        },
        "params": {"type": "object", "default": {}, "x-types": ["training"]},
    }
    typed = {"num_epochs": "3", "name": "", "labels": "team=1\nof=a=b", "params": "lr=0.1\nkind=SGD\nflag=true"}
    spec = call("views/submit/values.js", "m.specOf(...a)", [properties, typed])
    assert spec == {
        "num_epochs": 3,
        "labels": {"team": "1", "of": "a=b"},
        "params": {"lr": 0.1, "kind": "SGD", "flag": True},
    }
    assert call("views/submit/values.js", "m.specOf(...a)", [properties, {**typed, "type": "evaluation"}]) == {
        "type": "evaluation"
    }
    back = call("views/submit/values.js", "m.valuesOf(...a)", [properties, {**spec, "params": {"text": "12"}}])
    assert back == {"num_epochs": 3, "labels": "team=1\nof=a=b", "params": 'text="12"'}
    assert call("views/submit/values.js", "m.specOf(...a)", [properties, {"num_epochs": "many", "labels": "x"}]) == {
        "num_epochs": "many",
        "labels": "x",
    }


def test_pairs_are_typed_as_lines(call: Call) -> None:
    name = "ui/pairs.js"
    pairs = {"a": "5", "b": "x=y", "c": ""}
    assert call(name, "m.pairsText(a, true)", pairs) == "a=5\nb=x=y\nc="
    assert call(name, "m.pairsOf(m.pairsText(a, true), true)", pairs) == pairs
    values = {"rate": 0.5, "name": "relu", "text": "5", "list": [1]}
    assert call(name, "m.pairsText(a, false)", values) == 'rate=0.5\nname=relu\ntext="5"\nlist=[1]'
    assert call(name, "m.pairsOf(m.pairsText(a, false), false)", values) == values
    assert call(name, "m.pairsOf('a=1\\nno pair', true)") == "a=1\nno pair"
    assert call(name, "m.patchOf({a: '1', b: '2', c: '3'}, {a: '1', b: 'x', d: '4'})") == {
        "b": "x",
        "c": None,
        "d": "4",
    }


def test_slots_of_the_largest_jobs_are_areas_and_the_others_one(call: Call) -> None:
    name = "views/cluster.js"
    assert call(name, "m.summed(a)", [[[1, 2], [3, 4]], [[2, 10], [5, 20]], []]) == [
        *([1, 2], [2, 12], [3, 14], [5, 20])
    ]
    series = [{"name": f"job.j{size}", "points": [[0, size], [9, size]]} for size in range(12)]
    series += [{"name": "job.other", "points": [[0, 100]]}, {"name": "slots.total", "points": [[0, 200]]}]
    found = call(name, "m.slotAreas(a, new Map([['j11', 'digits'], ['j10', 'digits'], ['j9', 'clicks']]))", series)
    labels = [one["label"] for one in found["jobs"]]
    assert labels == ["j11", "j10", "clicks", "j8", "j7", "j6", "j5", "j4", "others"]
    assert found["jobs"][-1]["points"] == [[0, 106], [9, 6]]
    assert found["total"] == [[0, 200]]
